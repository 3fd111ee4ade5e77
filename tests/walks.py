"""Counts the modules that a reader opens to follow each walk of a job: ``python -m tests.walks``.

A walk is the import closure of the modules in which it is decided, cut at the packages that are an edge
of it (values of the core, clients, settings): what is behind an edge is known by its name.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# The walk: where it begins, and the packages whose modules are read. A closure ends at what is not in them.
WALKS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "a spawn": (("dlspawner.spawner.spawner",), ("dlspawner.spawner", "dlspawner.core.launch")),
    "an SSH login": (("ssh_gateway.server",), ("ssh_gateway",)),
    "a queued job": (
        ("dlspawner.manager.admission.scheduler", "dlspawner.manager.admission.dispatcher"),
        ("dlspawner.manager.admission", "dlspawner.manager.state", "dlspawner.core.scheduling"),
    ),
    "a cull": (
        ("dlspawner.manager.culling.culler",),
        ("dlspawner.manager.culling", "dlspawner.manager.state", "dlspawner.core.idle"),
    ),
    "admission": (
        ("dlspawner.manager.admission.service",),
        ("dlspawner.manager.admission", "dlspawner.core.scheduling"),
    ),
}


def path_of(module: str) -> Path | None:
    base = ROOT.joinpath(*module.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def imports(module: str) -> Iterator[str]:
    """Yields the modules that `module` imports, at its top or within a function."""
    path = path_of(module)
    assert path is not None, module
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if path_of(full) else node.module


def walk(entries: tuple[str, ...], packages: tuple[str, ...]) -> dict[str, int]:
    """Returns the modules of a walk with their lines."""
    found: dict[str, int] = {}
    todo = list(entries)
    while todo:
        module = todo.pop()
        path = path_of(module)
        if module in found or path is None or not any(f"{module}.".startswith(f"{package}.") for package in packages):
            continue
        text = path.read_text(encoding="utf-8")
        if not text.strip():
            continue
        found[module] = text.count("\n")
        todo.extend(imports(module))
    return found


def main() -> None:
    for name, (entries, packages) in WALKS.items():
        found = walk(entries, packages)
        print(f"{name}: {len(found)} modules, {sum(found.values())} lines")
        if "-v" in sys.argv:
            for module in sorted(found):
                print(f"    {found[module]:4} {module}")


if __name__ == "__main__":
    main()
