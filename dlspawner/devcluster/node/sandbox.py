"""What runs between the node and a container's command: makes (or enters) the namespaces, then becomes the command.

The node starts this file with ``python -I -S -E``: it imports four small modules and nothing of the project, which
keeps the cost of a container near 20 ms. It is told what to do by a marshalled dictionary on a file descriptor
(`runner.py` writes it) and answers on another with the new process's id (``pid N``) and, when
the command cannot run, with one sentence (``error …``); the descriptor closes when it is clear which.

A new container gets
* a user namespace that maps its uid and gid to the node's own: it works without root, files have one owner wherever
  they are looked at, and the interpreter may live in a directory that only the node's owner can read;
* a mount namespace with a tmpfs as its root and read-only binds of the machine's top-level entries. A mount point that
  the machine does not have is made on a tmpfs laid over its parent, with binds of the siblings: nothing is ever
  created on the machine. /proc, /dev (with its own terminals) and /dev/shm are fresh, /tmp is the container's;
* a PID namespace: the command is process 1, as in any container, and the kernel kills the rest when it ends.

The chain that leaves nothing behind: the command is a child of the node itself (CLONE_PARENT) with PDEATHSIG=KILL.
Refused: overlayfs for a writable root (not everywhere allowed without root, and a container that is not root could
write next to nothing there anyway).
"""

# pathlib would double the start-up:
# ruff: noqa: PTH102, PTH103, PTH106, PTH110, PTH112, PTH113, PTH114, PTH115, PTH118, PTH120, PTH211
# These paths are the container's, not the machine's:
# ruff: noqa: S108
from __future__ import annotations

import ctypes
import marshal
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # the real module would cost as much as the rest of the start-up
    from typing import Any, NoReturn

    Spec = dict[str, Any]

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWUSER, CLONE_NEWPID, CLONE_PARENT = (
    0x20000,
    0x4000000,
    0x10000000,
    0x20000000,
    0x8000,
)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 0x1000, 0x4000, 0x40000
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
SYS_CLONE = {"x86_64": 56, "aarch64": 220}
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
TIOCSCTTY = 0x540E
OLD = "/.old"
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

libc = ctypes.CDLL(None, use_errno=True)


class SetupError(Exception):
    """One sentence for the container's status."""


def check(result: int, what: str) -> int:
    if result < 0:
        raise SetupError(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    result = libc.mount(
        os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), data.encode() or None
    )
    check(result, f"mount {kind or source} on {target}")


def bind(source: str, target: str, *, readonly: bool) -> None:
    mount(source, target, "", MS_BIND | MS_REC)
    if readonly:
        freeze(target, AT_RECURSIVE)


def freeze(target: str, flags: int) -> None:
    """Make mounts read-only without touching the flags that a user namespace may not lift."""
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)
    path = os.fsencode(target)
    result = libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, path, flags, ctypes.byref(attributes), ctypes.sizeof(attributes))
    check(result, f"make {target} read-only")


def write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def unshare(spec: Spec) -> None:
    flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS
    uid, gid = os.geteuid(), os.getegid()
    if libc.unshare(flags) < 0:
        reason = os.strerror(ctypes.get_errno())
        raise SetupError(
            "this machine does not let the node make user, mount and PID namespaces"
            f" (unshare: {reason}; see user.max_user_namespaces and kernel.unprivileged_userns_clone)"
        )
    try:
        write("/proc/self/setgroups", "deny")
        write("/proc/self/uid_map", f"{spec['uid']} {uid} 1")
        write("/proc/self/gid_map", f"{spec['gid']} {gid} 1")
    except OSError as error:
        raise SetupError(f"the user namespace cannot be given its user: {error}") from None


def enter(pid: int) -> None:
    pidfd = os.pidfd_open(pid)
    check(libc.setns(pidfd, CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS), "enter the container")


def fork_sibling() -> int:
    """Like fork, but the child's parent is ours: the node, which therefore reaps it and takes it along when it dies."""
    number = SYS_CLONE.get(os.uname().machine)
    if number is None:
        raise SetupError(f"the node does not know this machine's system calls ({os.uname().machine})")
    return check(libc.syscall(number, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0), "clone")


class Root:
    """The new root while it is being built; ``/.old`` is the machine's until the end."""

    def __init__(self, base: str) -> None:
        mount("", "/", "", MS_REC | MS_PRIVATE)
        mount("tmpfs", base, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=16m")
        os.mkdir(base + OLD)
        os.chdir(base)
        result = libc.syscall({"x86_64": 155, "aarch64": 41}[os.uname().machine], b".", b".old")
        check(result, "pivot_root")
        os.chdir("/")
        # Where a missing mount point may simply be made: tmpfs of ours, and volumes. Longest prefix wins.
        self.ours: dict[str, bool] = {"/": True}
        self.covers = ["/"]

    def bind_machine(self) -> None:
        for entry in os.scandir(OLD):
            target = "/" + entry.name
            if entry.name in ("proc", "dev", "tmp", ".old"):
                continue
            self.copy(entry, target)
            if not entry.is_symlink():
                freeze(target, AT_RECURSIVE)
                self.ours[target] = False

    def copy(self, entry: os.DirEntry[str], target: str) -> None:
        """The same thing in the new tree: links are copied, all else is bound."""
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), target)
            return
        if entry.is_dir():
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
        try:
            mount(entry.path, target, "", MS_BIND | MS_REC)
        except SetupError:
            # A stale or forbidden mount of the machine's is not the container's business: it finds an empty one.
            return

    def devices(self) -> None:
        os.mkdir("/dev")
        mount("tmpfs", "/dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=755,size=1m")
        for name in DEVICES:
            os.close(os.open("/dev/" + name, os.O_CREAT | os.O_WRONLY))
            mount(f"{OLD}/dev/{name}", "/dev/" + name, "", MS_BIND)
        os.mkdir("/dev/pts")
        mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
        os.mkdir("/dev/shm")
        mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=64m")  # as runtimes do
        links = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd"}
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            links[name] = f"/proc/self/fd/{number}"
        for name, target in links.items():
            os.symlink(target, "/dev/" + name)
        self.ours["/dev"] = True

    def processes(self) -> None:
        os.mkdir("/proc")
        try:
            mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        except SetupError as error:
            raise SetupError(f"this machine does not let a container have its own /proc ({error})") from None
        self.ours["/proc"] = False

    def owner(self, path: str) -> bool:
        """True if files may be made below ``path`` without touching the machine."""
        while path not in self.ours:
            path = os.path.dirname(path)
        return self.ours[path]

    def make(self, target: str, *, directory: bool) -> None:
        """Make sure that ``target`` exists, as a directory or as a file to mount over.

        A file of the machine's is no place for a mount: it goes when the machine replaces that file (``useradd`` does).
        """
        if os.path.exists(target) and (directory or self.owner(target)):
            return
        parent = os.path.dirname(target)
        while not os.path.isdir(parent):
            if os.path.lexists(parent) and not os.path.islink(parent):
                raise SetupError(f"{parent} is not a directory, so nothing can be mounted on {target}")
            parent = os.path.dirname(parent)
        if not self.owner(os.path.realpath(parent)):
            self.cover(os.path.realpath(parent))
        if not directory:
            libc.umount2(os.fsencode(target), MNT_DETACH)  # the machine's file, if there is one
        try:
            os.makedirs(target if directory else os.path.dirname(target), exist_ok=True)
            if not directory:
                os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
        except OSError as error:
            raise SetupError(f"cannot make the mount point {target}: {error.strerror}") from None

    def cover(self, path: str) -> None:
        """Lay a tmpfs over a directory of the machine and bind its entries back, so that others can be added."""
        below = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=16m")
        for entry in os.scandir(f"/proc/self/fd/{below}"):
            self.copy(entry, os.path.join(path, entry.name))
            if not entry.is_symlink():
                self.ours[os.path.join(path, entry.name)] = False
        os.close(below)
        self.ours[path] = True
        self.covers.append(path)

    def hide(self, path: str) -> None:
        """An empty directory where the node keeps its secrets."""
        if os.path.isdir(path) and not self.owner(path):
            mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV | MS_RDONLY, "mode=755,size=4k")

    def volume(self, volume: Spec) -> None:
        source, target = OLD + volume["source"], os.path.realpath(volume["target"])
        self.make(target, directory=os.path.isdir(source))
        if volume["memory"]:
            mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,size={volume['memory']}")
        else:
            bind(source, target, readonly=volume["readonly"])
        self.ours[target] = True

    def seal(self) -> None:
        check(libc.umount2(OLD.encode(), MNT_DETACH), "leave the machine's root")
        os.rmdir(OLD)
        for path in reversed(self.covers):
            freeze(path, 0)


def build(spec: Spec) -> None:
    root = Root(spec["base"])
    root.bind_machine()
    root.devices()
    root.processes()
    os.mkdir("/tmp")
    bind(OLD + spec["tmp"], "/tmp", readonly=False)
    root.ours["/tmp"] = True
    for path in spec["visible"]:
        root.volume({"source": path, "target": path, "readonly": True, "memory": 0})
        root.ours[path] = False
    for path in spec["hide"]:
        root.hide(path)
    if spec["uid"] == 0:
        root.make("/run/sshd", directory=True)  # root's sshd wants it, and an image's root could make it
    for volume in spec["mounts"]:
        root.volume(volume)
    root.seal()
    name = spec["hostname"].encode()
    libc.sethostname(name, len(name))


def find(command: str, environment: dict[str, str]) -> str:
    """The file to execute; the sentences are those of runc, which people search for."""
    if "/" in command:
        if not os.path.exists(command):
            raise SetupError(f'exec: "{command}": stat {command}: no such file or directory')
        return command
    for directory in environment.get("PATH", "").split(":"):
        path = os.path.join(directory or ".", command)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise SetupError(f'exec: "{command}": executable file not found in $PATH')


def become(spec: Spec) -> NoReturn:
    try:
        os.chdir(spec["cwd"])
    except OSError as error:
        raise SetupError(f'chdir to cwd ("{spec["cwd"]}") failed: {os.strerror(error.errno or 0).lower()}') from None
    if spec["no_new_privileges"]:
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    environment, arguments = spec["env"], spec["args"]
    path = find(arguments[0], environment)
    os.setsid()
    if spec["tty"]:
        libc.ioctl(0, ctypes.c_ulong(TIOCSCTTY), 0)
    os.umask(0o022)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(path, arguments, environment)  # noqa: S606  (that is what this file is for)
    except OSError as error:
        raise SetupError(f'exec: "{arguments[0]}": {os.strerror(error.errno or 0).lower()}') from None


def node_is_gone(status: int) -> bool:
    """PDEATHSIG only counts from when it is set: look whether the node died before (nothing reads the answers)."""
    import select

    poll = select.poll()
    poll.register(status, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def report(status: int, word: str, value: str) -> None:
    """One line; short enough that two writers cannot interleave."""
    line = f"{word} {value}".replace("\n", " ").encode()[:4000]
    os.write(status, line + b"\n")


def child(spec: Spec, status: int) -> NoReturn:
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if node_is_gone(status):
        os._exit(1)
    try:
        if not spec["enter"]:
            build(spec)
        become(spec)
    except (SetupError, OSError) as error:
        report(status, "error", str(error))
    os._exit(127)


def main() -> NoReturn:
    source, status = int(sys.argv[1]), int(sys.argv[2])
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with open(source, "rb") as file:
        spec = marshal.load(file)  # noqa: S302  (written by the node a moment ago)
    if os.getppid() != spec["node"]:
        os._exit(1)
    os.set_inheritable(status, False)
    try:
        if spec["enter"]:
            enter(spec["enter"])
        else:
            unshare(spec)
        pid = fork_sibling()
    except (SetupError, OSError) as error:
        report(status, "error", str(error))
        os._exit(1)
    if pid == 0:
        child(spec, status)
    report(status, "pid", str(pid))
    os._exit(0)
