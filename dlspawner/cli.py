"""The command ``dlspawner``: commands for administrators, and for users on their own machines.

The users' commands (``login``, ``submit``, ``list``, …) are in ``dlspawner.client``; they send requests to a Hub.
``dlspawner validate`` checks templates, cluster and teams with the code that the Hub uses; ``dlspawner bootstrap``
makes the secrets of a deployment on Kubernetes, ``dlspawner doctor`` checks one, ``backup`` and ``restore`` save it and
bring it back; ``dlspawner simulate`` replays traces
with other policies. ``dlspawner local`` and ``dlspawner devcluster`` are other programs of this package under one name,
and parse their own arguments.

Exit codes: 0 success, 1 problems were found, 2 wrong usage (argparse's own), 141 the reader of the output has closed
it; the users' commands have more of them.
"""

from __future__ import annotations

import argparse
import io
import os
import runpy
import sys
from collections.abc import Collection, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import shtab

from dlspawner.client import arguments as people
from dlspawner.client import commands

if TYPE_CHECKING:
    from dlspawner.simulate.trace import Trace

READ_ENOUGH = 141  # a shell's exit code for a program that ended because the reader of its output had closed it

# Programs that read their own arguments, by the module that ``python -m`` runs.
_PROGRAMS = {
    "local": ("dlspawner.local", "the whole product on this machine"),
    "devcluster": ("dlspawner.devcluster", "the embedded cluster alone"),
}

# Commands whose modules take a second to import: the module, its help and its description.
_MODULES = {
    "bootstrap": (
        "dlspawner.bootstrap",
        "make the secrets of a deployment on Kubernetes",
        "Create the Secrets that are missing, keep the others. The right to create Secrets is enough.",
    ),
    "doctor": (
        "dlspawner.doctor",
        "say what of an installation on Kubernetes does not fit",
        "Check a live installation with an administrator's kubeconfig; print problems, causes, remedies.",
    ),
    "backup": (
        "dlspawner.backup",
        "save databases and secrets while everything runs",
        "Save databases and secrets of the product into a new directory, while everything runs.",
    ),
    "restore": (
        "dlspawner.backup",
        "put a backup back where nothing is",
        "Restore a directory of `dlspawner backup`. What exists is never replaced.",
    ),
    "kueue": (
        "dlspawner.kueue",
        "make Kueue's queues of the teams",
        "Create Kueue's flavors, queues and priority classes by the files, or change those made so before.",
    ),
    "simulate": (
        "dlspawner.simulate.command",
        "replay a trace with other policies",
        "Replay a trace, or the Manager's history, with the Manager's own decisions and other settings.",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may lack some letters of a name
    if given and given[0] in _PROGRAMS:
        return _run_program(given[0], given[1:])
    try:
        try:
            return _run(given)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the output: `dlspawner logs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READ_ENOUGH


def _run(given: list[str]) -> int:
    first = given[0] if given else ""
    parser = _parser(_MODULES if first == "completion" else (first,))
    parsed = parser.parse_args(given)
    if parsed.command == "completion":
        print(shtab.complete(parser, parsed.shell))
        return 0
    if parsed.command == "validate":
        return _validate(parsed)
    if parsed.command in _MODULES:
        module = import_module(_MODULES[parsed.command][0])
        return int(module.main(parsed, _history) if parsed.command == "simulate" else module.main(parsed))
    return commands.run(parsed)


def _parser(whole: Collection[str]) -> argparse.ArgumentParser:
    """Returns the parser of all commands; of those in `_MODULES` only the ones in ``whole`` have their arguments."""
    parser = argparse.ArgumentParser(prog="dlspawner", description="JupyterHub for deep-learning clusters.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version of dlspawner, and end")
    programs = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    people.add(programs)
    validate = programs.add_parser(
        "validate",
        help="check templates, cluster and teams",
        description="Check the files as the Hub does at its start, and print every problem with file, line and path.",
    )
    _add_files(validate)
    validate.add_argument(
        "--start-timeout",
        type=int,
        default=600,
        metavar="SECONDS",
        help="the Hub's start_timeout, into which every grace period has to fit (default: 600, as hub_config sets it)",
    )
    validate.add_argument(
        "--consecutive-failure-limit",
        type=int,
        default=0,
        metavar="N",
        help="the Hub's consecutive_failure_limit, to be 0 with JupyterHub 5 (default: 0, as hub_config sets it)",
    )
    validate.add_argument(
        "--special-namespace",
        default="",
        metavar="NAME",
        help="the Hub's special_namespace, without which no special permission can be switched on (default: none)",
    )
    for name, (module, what, description) in _MODULES.items():
        one = programs.add_parser(name, help=what, description=description)
        if name == "kueue":
            _add_files(one)
        if name in whole:
            import_module(module).add_arguments(one)
    for name, (_, what) in _PROGRAMS.items():
        programs.add_parser(name, help=what, add_help=False)
    return parser


def _add_files(parser: argparse.ArgumentParser) -> None:
    for option, default, what in (
        ("templates", Path("templates/jobs"), "directory of the job templates"),
        ("cluster", Path("hub_config/cluster.yaml"), "the cluster file"),
        ("teams", Path("hub_config/teams.yaml"), "the teams file"),
    ):
        parser.add_argument(f"--{option}", type=Path, default=default, help=f"{what} (default: {default})")


class _Version(argparse.Action):
    """``--version``; argparse's own action would look the version up at every command."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"{parser.prog} {version('dlspawner')}")
        parser.exit()


def _validate(given: argparse.Namespace) -> int:
    from dlspawner import settings
    from dlspawner.errors import InvalidConfiguration
    from dlspawner.spawner.kube.errors import limit_problem

    limit = limit_problem(given.consecutive_failure_limit)
    problems: list[object] = [limit] if limit else []
    try:
        files = given.templates, given.cluster, given.teams
        where = given.special_namespace
        found = settings.load(*files, start_timeout=given.start_timeout, special_namespace=where)
    except InvalidConfiguration as invalid:
        problems += invalid.problems
    if problems:
        for problem in problems:
            print(problem)
        count = len(problems)
        print(f"{count} problem{'s' if count != 1 else ''}", file=sys.stderr)
        return 1
    counts = (
        (len(found.templates), "template"),
        (len(found.cluster.gpu_types), "GPU type"),
        (len(found.teams.teams), "team"),
    )
    print("ok: " + ", ".join(f"{count} {what}{'s' if count != 1 else ''}" for count, what in counts))
    return 0


def _history(url: str) -> Trace:
    """Reads the Manager's history; imported only then, because the database's packages take a while."""
    from dlspawner.manager.history import trace

    return trace.read(url)


def _run_program(name: str, arguments: list[str]) -> int:
    module, _ = _PROGRAMS[name]
    sys.argv = [f"dlspawner {name}", *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
