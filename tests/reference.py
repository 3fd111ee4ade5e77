"""Write hub_config/REFERENCE.md from the traits' own help: `make reference`. A test checks that it is up to date."""

from __future__ import annotations

import inspect
from pathlib import Path

from traitlets import TraitType
from traitlets.config import Configurable

PATH = Path(__file__).resolve().parent.parent / "hub_config" / "REFERENCE.md"
HEAD = """# Configuration reference

Generated from the traits by `make reference`; do not edit. [templates/README.md](../templates/README.md) describes the
administrators' YAML files (templates, teams, GPU types).

`DLSpawner` has every option of KubeSpawner as well (`c.KubeSpawner.…` configuration is inherited). Traits are set in
`jupyterhub_config.py`, those of the Manager and the gateway on their command lines (`--Gateway.port=2222`). Manager and
gateway do not start with an unknown trait.
"""


def configurables() -> list[type[Configurable]]:
    """Every class of ours that an administrator configures."""
    from dlspawner.manager.app import Manager
    from dlspawner.manager.culling.config import GpuMetrics
    from dlspawner.manager.logs.collector import JobLogs
    from dlspawner.spawner import DLSpawner
    from ssh_gateway.app import Gateway

    return [DLSpawner, Manager, GpuMetrics, JobLogs, Gateway]


def default_of(trait: TraitType[object, object]) -> str:
    text = trait.default_value_repr()
    return "computed" if text in {"traitlets.Undefined", "Undefined"} else text


def section(cls: type[Configurable]) -> str:
    ours = [base for base in cls.__mro__ if base.__module__.startswith(("dlspawner.", "ssh_gateway."))]
    traits = sorted(
        {
            name: trait
            for base in ours
            if hasattr(base, "class_own_traits")
            for name, trait in base.class_own_traits(config=True).items()
        }.items()
    )
    entries = [
        f"### `{cls.__name__}.{name}`\n\n{type(trait).__name__}, default `{default_of(trait)}`\n\n"
        f"{inspect.cleandoc(trait.help)}\n"
        for name, trait in traits
    ]
    return f"\n## {cls.__name__}\n\n{inspect.cleandoc((cls.__doc__ or '').strip()).splitlines()[0]}\n\n" + "\n".join(
        entries
    )


def reference() -> str:
    return HEAD + "".join(section(cls) for cls in configurables())


def main() -> None:
    PATH.write_text(reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
