"""paramiko doing one thing: ``python paramiko_client.py CASE``, with where and as whom as JSON on standard input.

Prints what came of it as JSON; a process of its own, because paramiko is threads.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paramiko
from paramiko.common import cMSG_CHANNEL_REQUEST

MIB = 2**20
Case = Callable[[paramiko.SSHClient, dict[str, Any]], Any]


def run(client: paramiko.SSHClient, command: str, feed: bytes = b"", **more: Any) -> list[Any]:
    """Output, errors and status of a command."""
    stdin, stdout, stderr = client.exec_command(command, **more)
    stdin.write(feed)
    stdin.channel.shutdown_write()
    return [stdout.read().decode(), stderr.read().decode(), stdout.channel.recv_exit_status()]


def commands(client: paramiko.SSHClient, _: dict[str, Any]) -> Any:
    return [
        run(client, "echo out; echo err >&2; exit 7"),
        run(client, "cat", b"typed"),
        run(client, "echo $GREETING", environment={"GREETING": "hello"}),
        run(client, "kill -TERM $$"),
        run(client, "tty >/dev/null && echo terminal", get_pty=True),
    ]


def bulk(client: paramiko.SSHClient, where: dict[str, Any]) -> Any:
    """Data both ways, with new keys in the middle."""
    return sent_back(client, where, client.get_transport().renegotiate_keys)


def sent_back(client: paramiko.SSHClient, _: dict[str, Any], in_the_middle: Callable[[], None] = lambda: None) -> Any:
    """Data both ways."""
    data = os.urandom(4 * MIB)
    channel = client.get_transport().open_session()
    channel.exec_command("cat")
    sender = threading.Thread(target=lambda: (channel.sendall(data), channel.shutdown_write()))
    sender.start()
    got = b""
    while chunk := channel.recv(65536):
        if len(got) < MIB <= len(got) + len(chunk):
            in_the_middle()
        got += chunk
    sender.join()
    return [hashlib.sha256(got).digest() == hashlib.sha256(data).digest(), channel.recv_exit_status()]


def shell(client: paramiko.SSHClient, _: dict[str, Any]) -> Any:
    channel = client.invoke_shell("vt220", 81, 25)
    channel.resize_pty(132, 50)
    channel.sendall("PS1=; echo $TERM; until stty size | grep '50 132'; do :; done; exit 5\n")
    seen = b""
    while chunk := channel.recv(4096):
        seen += chunk
    lines = seen.decode().split()
    return ["vt220" in lines, lines[-2:] == ["50", "132"] or "exit" in lines, channel.recv_exit_status()]


def files(client: paramiko.SSHClient, where: dict[str, Any]) -> Any:
    data = os.urandom(2 * MIB)
    with tempfile.TemporaryDirectory() as here, client.open_sftp() as sftp:
        sftp.chdir(where["folder"])
        Path(here, "sent").write_bytes(data)
        sftp.put(f"{here}/sent", "sent")
        sftp.chmod("sent", 0o640)
        sftp.symlink("sent", "link")
        sftp.mkdir("folder")
        sftp.posix_rename("sent", "folder/renamed")
        sftp.get("folder/renamed", f"{here}/back")
        names = sorted(sftp.listdir(".")), sftp.readlink("link"), sftp.stat("folder/renamed").st_mode & 0o777
        try:
            sftp.remove("no-such-file")
            problem = None
        except OSError as error:
            problem = error.errno
        with sftp.open("folder/renamed", "r+") as file:
            file.seek(1000)
            file.write(b"here")
            file.seek(998)
            part = file.read(8) == data[998:1000] + b"here" + data[1004:1006]
        return [names, problem, part, Path(here, "back").read_bytes() == data]


def forwards(client: paramiko.SSHClient, where: dict[str, Any]) -> Any:
    """A stream to a port of the job, one to a port that nobody has, and one from the job to here."""
    transport = client.get_transport()
    there = transport.open_channel("direct-tcpip", ("127.0.0.1", where["echo"]), ("127.0.0.1", 1))
    there.sendall(b"there")
    there.shutdown_write()
    said = b"".join(iter(lambda: there.recv(100), b""))
    refused = problem_of(lambda: transport.open_channel("direct-tcpip", ("127.0.0.1", 1), ("127.0.0.1", 1)))
    port = transport.request_port_forward("127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", port)) as outside:
        inside = transport.accept(20)
        outside.sendall(b"back")
        back = inside.recv(4)
        inside.close()
    transport.cancel_port_forward("127.0.0.1", port)
    gone = problem_of(lambda: socket.create_connection(("127.0.0.1", port)).close())
    return [said.decode(), refused, back.decode(), gone]


def problem_of(deed: Callable[[], Any]) -> list[Any]:
    try:
        deed()
    except (paramiko.SSHException, OSError) as error:
        return [type(error).__name__, *map(str, error.args)]
    return []


def requests(client: paramiko.SSHClient, _: dict[str, Any]) -> Any:
    """What nobody has heard of, in order among what is known; and signals and breaks, which few clients send."""
    transport = client.get_transport()
    unknown = transport.global_request("nobody@knows.this", (b"data",), wait=True) is None
    alive = transport.global_request("keepalive@openssh.com", wait=True) is None
    kind = problem_of(lambda: transport.open_channel("nothing@knows.this"))
    answers = [ask(transport.open_session(), name, *more) for name, *more in (("nobody@knows.this",), ("break", 500))]
    channel = transport.open_session()
    channel.get_pty()
    channel.exec_command("trap 'echo caught; exit 3' USR1; echo ready; while :; do sleep 0.05; done")
    seen = b""
    while b"ready" not in seen:
        seen += channel.recv(100)
    answers += [ask(channel, "break", 500), ask(channel, "signal", "USR1")]
    if not answers[-1]:
        return [unknown, alive, kind, answers]
    while chunk := channel.recv(100):
        seen += chunk
    return [unknown, alive, kind, answers, b"caught" in seen, channel.recv_exit_status()]


SIGNALS = ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2")  # and KILL: those that OpenSSH's sshd delivers
NO_SIGNALS = ("ABRT", "ALRM", "FPE", "ILL", "PIPE", "SEGV", "STOP", "SIGTERM", "term", "nobody@knows.this", "")

# Waits without a child, which would get the signal too, and no longer than there is somebody at the other end.
UNTIL_LEFT = "while read -t 0.05 word || [ $? -gt 128 ]; do :; done"


def signals(client: paramiko.SSHClient, _: dict[str, Any]) -> Any:
    """Signals that are caught, with and without an answer wanted; the one that cannot be; names that are none."""
    transport = client.get_transport()
    caught = [signalled(transport, name, answered=answered) for name in SIGNALS for answered in (True, False)]
    refused = [signalled(transport, name, answered=True) for name in NO_SIGNALS]
    too_early = ask(transport.open_session(), "signal", "TERM")
    alive = run(client, "echo alive")
    return [caught, signalled(transport, "KILL", answered=True), refused, too_early, alive]


def signalled(transport: paramiko.Transport, name: str, *, answered: bool) -> list[Any]:
    """Whether a running command may be sent the signal, if that is asked; what it says of it, and its status."""
    channel = transport.open_session()
    traps = "; ".join(f"trap 'echo caught {one}; exit {n}' {one}" for n, one in enumerate(SIGNALS, 1))
    channel.exec_command(f"{traps}; echo ready; {UNTIL_LEFT}")
    seen = read_until(channel, b"ready\n")
    granted = ask(channel, "signal", name) if answered else tell(channel, "signal", name)
    if granted is False:
        return [False]
    while chunk := channel.recv(100):
        seen += chunk
    return [granted, seen.decode().split("\n")[1], channel.recv_exit_status()]


def breaks(client: paramiko.SSHClient, _: dict[str, Any]) -> Any:
    """Of every length, in a terminal and without one, with and without an answer wanted: the command lives on."""
    return [
        broken(client.get_transport(), length, terminal=terminal, answered=answered)
        for terminal in (True, False)
        for answered in (True, False)
        for length in (0, 500, 2**32 - 1)
    ]


def broken(transport: paramiko.Transport, length: int, *, terminal: bool, answered: bool) -> list[Any]:
    channel = transport.open_session()
    if terminal:
        channel.get_pty()
    channel.exec_command("echo ready; read word; echo got $word")
    read_until(channel, b"ready")
    granted = ask(channel, "break", length) if answered else tell(channel, "break", length)
    if granted is False:
        return [False]
    channel.sendall(b"word\n")
    return [granted, read_until(channel, b"got word").endswith(b"got word"), channel.recv_exit_status()]


def read_until(channel: paramiko.Channel, mark: bytes) -> bytes:
    """What a channel says, as far as the mark, or to its end."""
    seen = b""
    while mark not in seen and (chunk := channel.recv(1)):
        seen += chunk
    return seen


def tell(channel: paramiko.Channel, name: str, *more: str | int) -> None:
    """A channel request without an answer."""
    channel.transport._send_user_message(request(channel, name, *more, answered=False))


def request(channel: paramiko.Channel, name: str, *more: str | int, answered: bool) -> paramiko.Message:
    message = paramiko.Message()
    message.add_byte(cMSG_CHANNEL_REQUEST)
    message.add_int(channel.remote_chanid)
    message.add_string(name)
    message.add_boolean(answered)
    for one in more:
        message.add_int(one) if isinstance(one, int) else message.add_string(one)
    return message


def ask(channel: paramiko.Channel, name: str, *more: str | int) -> bool:
    """A channel request as paramiko's own are sent, and whether it was granted."""
    channel._event_pending()
    channel.transport._send_user_message(request(channel, name, *more, answered=True))
    try:
        channel._wait_for_event()  # paramiko closes the channel on a refusal
    except paramiko.SSHException:
        return False
    return True


def subsystem(client: paramiko.SSHClient, _: dict[str, Any]) -> Any:
    channel = client.get_transport().open_session()
    return problem_of(lambda: channel.invoke_subsystem("nonsense"))


def many(client: paramiko.SSHClient, _: dict[str, Any]) -> Any:
    """40 channels at once over one connection."""
    opened = [client.exec_command(f"cat; exit {n}") for n in range(40)]
    for n, (stdin, _, _) in enumerate(opened):
        stdin.write(b"%d" % n)
        stdin.channel.shutdown_write()
    return [[out.read().decode(), out.channel.recv_exit_status()] for _, out, _ in opened]


def agent(client: paramiko.SSHClient, _: dict[str, Any]) -> Any:
    """The agent of here, used from the job."""
    channel = client.get_transport().open_session()
    handler = paramiko.agent.AgentRequestHandler(channel)
    channel.exec_command('test -n "$SSH_AUTH_SOCK" || exit 9; ssh-add -l')
    said = b"".join(iter(lambda: channel.recv(100), b""))
    handler.close()
    return [said.decode().split()[1:2], channel.recv_exit_status()]


def sockets(client: paramiko.SSHClient, where: dict[str, Any]) -> Any:
    """A stream to a socket of the job's file system, and one to a socket that is not there."""
    there = open_socket(client.get_transport(), where["socket"])
    there.sendall(b"there")
    there.shutdown_write()
    said = b"".join(iter(lambda: there.recv(100), b""))
    return [said.decode(), problem_of(lambda: open_socket(client.get_transport(), "/no/such/socket"))]


def open_socket(transport: paramiko.Transport, path: str) -> paramiko.Channel:
    """As `Transport.open_channel`, which does not know this kind."""
    send = transport._send_user_message

    def with_path(message: paramiko.Message) -> None:
        message.add_string(path)
        message.add_string("")
        message.add_int(0)
        send(message)

    transport._send_user_message = with_path
    try:
        return transport.open_channel("direct-streamlocal@openssh.com")
    finally:
        transport._send_user_message = send


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        commands, bulk, sent_back, shell, files, forwards, requests, signals, breaks, subsystem, many, agent, sockets,
    )
}  # fmt: skip


def connect(host: str, port: int, user: str, where: dict[str, Any], key: str, **more: Any) -> paramiko.SSHClient:
    """Log in with the one key, at the one host key."""
    client = paramiko.SSHClient()
    kind, encoded = key.split()[:2]
    name = host if port == 22 else f"[{host}]:{port}"
    client.get_host_keys().add(name, kind, paramiko.PKey.from_type_string(kind, base64.b64decode(encoded)))
    client.connect(
        host, port, user, key_filename=where["identity"], look_for_keys=False, allow_agent=False, timeout=20, **more
    )
    return client


def main() -> None:
    where = json.load(sys.stdin)
    sock = None
    if where["through"]:
        outer = connect("127.0.0.1", where["through"], "alice", where, where["host_key"])
        sock = outer.get_transport().open_channel("direct-tcpip", (where["host"], where["port"]), ("127.0.0.1", 1))
    client = connect(where["host"], where["port"], where["user"], where, where["host_key"], sock=sock)
    print(json.dumps(CASES[sys.argv[1]](client, where)))
    client.close()


if __name__ == "__main__":
    main()
