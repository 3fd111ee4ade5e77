"""The arguments of the users' commands; ``commands`` has their effects."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import Any

import shtab

from dlspawner.client import commands as do
from dlspawner.client import logs, ssh
from dlspawner.client.service import PAGE

# The service's names; live are all states but ended.
STATES = (
    *("live", "submitted", "pending-approval", "queued", "login-required"),
    *("starting", "running", "stopping", "ended"),
)
_TIME = "2031-12-24T18:00:00Z"
EXIT_CODES = """exit codes:
  0  done
  1  the service said no, or the job that was asked for has ended
  2  wrong usage, or a file with mistakes
  3  there is no such job
  4  not logged in, or the token is not taken
  5  no answer, or the service does not work yet
  141  the reader of the output is gone, as after "| head\""""


def add(commands: Any) -> None:
    _add_login(commands)
    _add_submit(commands)
    _add_list(commands)
    _add(commands, "show", do.show, "everything about a job", job=True)
    found = _add(commands, "events", do.events, "what became of a job, and what Kubernetes told of its pods", job=True)
    found.add_argument("--search", metavar="TEXT", help="only those that hold this text")
    _add_logs(commands)
    _add(commands, "kill", do.kill, "stop a job, or cancel a queued one; its files stay", job=True)
    _add(commands, "requeue", do.requeue, "start a job again with the same options", job=True)
    _add(commands, "keep-alive", do.keep_alive, "keep an unused job from being stopped", job=True)
    _add_ssh(commands)
    _add(commands, "quota", do.quota, "what your teams are entitled to and use")
    _add(commands, "cluster", do.cluster, "GPUs by type: how many, free, and most on one node")
    _add_nodes(commands)
    _add(commands, "queue", do.queue, "queued jobs, in their order")
    asked = _add(commands, "approvals", do.approvals, "requests for your approval, and your own")
    asked.add_argument("-a", "--all", action="store_true", help="what was decided, too, as far as you may see it")
    for name, what in (("approve", "approve a job, so that it may start"), ("deny", "deny a job its approval")):
        one = _add(commands, name, do.judge(name), what, job=True)
        one.add_argument("--reason", default="", help="what its owner reads")
        one.add_argument("--request", default="", metavar="ID", help="of several that it waits for this one")
    completion = commands.add_parser("completion", help="print completion for a shell")
    completion.add_argument("shell", choices=shtab.SUPPORTED_SHELLS, help="whose")


def _add(  # noqa: PLR0913 - what a command can be
    commands: Any,
    name: str,
    run: do.Command,
    what: str,
    *,
    job: bool = False,
    as_json: str = "print what the service answers",
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=what,
        description=f"{what[0].upper()}{what[1:]}.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if job:
        parser.add_argument(
            "job",
            nargs="?",
            default="",
            metavar="JOB",
            help="a server, NAME/SERVER, or an id (default: your default one)",
        )
    parser.add_argument("--json", action="store_true", help=as_json)
    parser.set_defaults(run=run, asks=True)
    return parser


def _add_list(commands: Any) -> None:
    parser = _add(commands, "list", do.list_jobs, "your jobs that have not ended, the newest first")
    parser.add_argument("-A", "--everybody", action="store_true", help="everybody's that you may see")
    parser.add_argument("-a", "--all", action="store_true", help="those that have ended, too")
    for name in ("user", "team", "template", "gpu-type"):
        parser.add_argument(f"--{name}", help=f"only of this {name.replace('-', ' ')}")
    parser.add_argument("--server", help='only of this server; "" is the default one')
    parser.add_argument(
        "--state", action="append", choices=STATES, help="only in this state, ended ones too; repeatable"
    )
    parser.add_argument("--since", metavar="TIME", type=_time, help=f"only asked for since then, such as {_TIME}")
    parser.add_argument(
        "--limit", metavar="N", type=_count, default=PAGE, help="at most the N newest (default: %(default)s)"
    )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text[:10]) > 0):
        raise argparse.ArgumentTypeError("it is a whole number from 1 on")
    return int(text)


def _time(text: str) -> str:
    """Returns the text as typed, if the service can read it as a time."""
    try:
        datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"it is a day or a time, such as {_TIME}") from None
    return text


def _add_login(commands: Any) -> None:
    parser = commands.add_parser("login", help="keep the Hub's address and a token of yours")
    parser.add_argument("url", metavar="URL", help="the Hub's address, such as https://hub.example.org")
    parser.set_defaults(run=do.log_in, asks=False)


def _add_submit(commands: Any) -> None:
    parser = _add(commands, "submit", do.submit, "ask for a job that a file describes")
    parser.add_argument("file", metavar="FILE", help="as the form exports it; - for standard input")
    parser.add_argument("--server", metavar="NAME", help="start it as this server, instead of the file's")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="change an option of the file")
    parser.add_argument("--wait", action="store_true", help="until it runs; say what it waits for")


def _add_logs(commands: Any) -> None:
    as_json = 'one object {"line": TEXT} for each line'
    parser = _add(commands, "logs", logs.print_log, "what a job has printed", job=True, as_json=as_json)
    parser.add_argument("-f", "--follow", action="store_true", help="go on while the job prints")
    parser.add_argument("-c", "--container", help="of this container (default: the one that runs the job)")
    parser.add_argument("--pod", default="", help="of this pod of a job of several: worker-1 (default: the first)")
    parser.add_argument("-p", "--previous", action="store_true", help="of the container before its last restart")
    parser.add_argument(
        "--tail", metavar="N", type=int, help="only the last N lines (default: all that is kept); not with -f"
    )
    parser.add_argument("--search", metavar="TEXT", help="only lines that hold this text")


def _add_nodes(commands: Any) -> None:
    drain = _add(
        commands, "drain", do.drain, "close a node, tell its people, stop its jobs at a time, wait until it is free"
    )
    drain.add_argument(
        "--at", metavar="TIME", type=_time, required=True, help=f"when jobs are stopped, such as {_TIME}"
    )
    drain.add_argument("--no-wait", action="store_true", help="do not wait until the node is free")
    cordon = _add(commands, "cordon", do.cordon, "close a node to new jobs; running jobs keep running")
    uncordon = _add(commands, "uncordon", do.uncordon, "open a node again, and end its drain")
    for one in (drain, cordon):
        one.add_argument("--message", metavar="TEXT", required=True, help="the reason, for everybody to read")
    for one in (drain, cordon, uncordon):
        one.add_argument("node", metavar="NODE", help="its name in Kubernetes; for administrators of the Hub")


def _add_ssh(commands: Any) -> None:
    parser = _add(commands, "ssh", do.ssh, "log in to a job with the ssh of this machine", job=True)
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="…", help="a command, or arguments of ssh before it")
    own = _add(commands, "ssh-config", ssh.print_config, "a configuration of OpenSSH, so that ssh JOB.dl works")
    own.add_argument("--known-hosts", action="store_true", help="the gateway's host keys instead")
    own.add_argument("--write", action="store_true", help="put both into ~/.ssh, and an Include into ~/.ssh/config")
