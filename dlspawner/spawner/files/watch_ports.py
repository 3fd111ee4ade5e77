"""Name the programs of a job on the host's network that listen on ports which are not the job's: watch_ports.py PROCESS

Runs inside the job, in the background, with the python3 of the image, and looks at the processes below PROCESS, the
job's `start`. The kernel's own choices (ip_local_port_range) are no mistake. What it finds is said once: to the job's
log, to the terminals below PROCESS and, where the job has a token here, to the Manager. With DLSPAWNER_ENFORCE_PORTS, a
number of seconds, the program gets a TERM after that, and a KILL ten seconds later. It runs as the person and looks
after mistakes, not after intruders.
"""

import contextlib
import json
import os
import signal
import sys
import time
import urllib.request
from pathlib import Path

EVERY = 3.0
PATIENCE = 10.0  # between TERM and KILL
LISTENS = "0A"
PROC = Path("/proc")


def read(path: str) -> str:
    """The text of a file of /proc; nothing of what is gone."""
    try:
        return (PROC / path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def listening() -> "dict[str, int]":
    """The ports of all listening TCP sockets in this network, by socket."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in read(f"net/{name}").splitlines()[1:]]
    return {f"socket:[{words[9]}]": int(words[1].rpartition(":")[2], 16) for words in lines if words[3] == LISTENS}


def below(root: int) -> "list[int]":
    """The processes that descend from one, without this one."""
    children: dict[int, list[int]] = {}
    for process in PROC.iterdir():
        words = read(f"{process.name}/stat").rpartition(")")[2].split() if process.name.isdigit() else ()
        if words and int(process.name) != os.getpid():
            children.setdefault(int(words[1]), []).append(int(process.name))
    found = list(children.get(root, ()))
    for one in found:
        found += children.get(one, ())
    return found


def files(process: int) -> "list[tuple[str, str]]":
    """The open files of a process, by their numbers; none of another user's."""
    found = []
    with contextlib.suppress(OSError):
        for fd in (PROC / f"{process}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.append((fd.name, os.readlink(fd)))  # noqa: PTH115 - the image's python3 may be older than ours
    return found


def tell(sentence: str, terminals: "set[str]") -> None:
    print(f"dlspawner: {sentence}", file=sys.stderr, flush=True)
    for terminal in terminals:
        with contextlib.suppress(OSError):
            Path(terminal).write_text(f"\r\n{sentence}\r\n", encoding="utf-8")


def tell_manager(program: str, port: int) -> None:
    """The administrators' log and metrics; without an answer only the job's log has it."""
    manager, token = os.environ.get("DLSPAWNER_MANAGER_URL"), os.environ.get("JUPYTERHUB_API_TOKEN")
    if not (manager and token):
        return
    request = urllib.request.Request(  # noqa: S310 - the address is the Hub's own setting
        manager.rstrip("/") + "/api/wrong-ports",
        data=json.dumps({"program": program, "port": port}).encode("utf-8"),
        headers={"Authorization": "token " + token, "Content-Type": "application/json"},
        method="PUT",
    )
    directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # proxy variables lead out of the cluster
    with contextlib.suppress(Exception):
        directly.open(request, timeout=10).close()


def main() -> None:
    root, ports, grace = int(sys.argv[1]), os.environ["DLSPAWNER_PORTS"], os.environ.get("DLSPAWNER_ENFORCE_PORTS")
    first, last = map(int, (read("sys/net/ipv4/ip_local_port_range") or "32768 60999").split())
    allowed = {int(port) for port in ports.split(",")}
    since: dict[str, float] = {}  # when a socket was first seen
    while os.getppid() == root:
        now = time.monotonic()
        wrong = {socket: at for socket, at in listening().items() if at not in allowed and not first <= at <= last}
        opened = [(process, fd, file) for process in below(root) for fd, file in files(process)]
        terminals = {file for _, fd, file in opened if fd == "0" and file.startswith("/dev/pts/")}
        found: dict[str, int] = {}
        for process, _, file in opened:
            if file in wrong:
                found.setdefault(file, process)
        since = {socket: since.get(socket, now) for socket in found}
        for socket, process in found.items():
            age = now - since[socket]
            if not age:
                program, ends = read(f"{process}/comm").strip(), f" It is ended in {grace} s." if grace else ""
                tell(
                    f"{program} (process {process}) listens on port {wrong[socket]} of the node, which is not this "
                    f"job's. Its ports are {ports} (DLSPAWNER_PORTS).{ends}",
                    terminals,
                )
                tell_manager(program, wrong[socket])
            elif grace and age >= float(grace):
                for holder in {one for one, _, file in opened if file == socket}:
                    with contextlib.suppress(OSError):
                        os.kill(holder, signal.SIGKILL if age >= float(grace) + PATIENCE else signal.SIGTERM)
        time.sleep(EVERY)


if __name__ == "__main__":
    main()
