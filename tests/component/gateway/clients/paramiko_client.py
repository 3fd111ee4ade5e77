"""paramiko doing one thing: ``python paramiko_client.py CASE``, with address and user as JSON on standard input.

Prints the outcome as JSON. It is a process of its own, because paramiko uses threads.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from typing import Any

import paramiko
from paramiko.common import cMSG_CHANNEL_REQUEST


def run(client: paramiko.SSHClient, command: str, feed: bytes = b"", **more: Any) -> list[Any]:
    """Output, errors and status of a command."""
    stdin, stdout, stderr = client.exec_command(command, **more)
    stdin.write(feed)
    stdin.channel.shutdown_write()
    return [stdout.read().decode(), stderr.read().decode(), stdout.channel.recv_exit_status()]


def commands(client: paramiko.SSHClient) -> Any:
    return [
        run(client, "echo out; echo err >&2; exit 7"),
        run(client, "cat", b"typed"),
        run(client, "echo $GREETING", environment={"GREETING": "hello"}),
        run(client, "kill -TERM $$"),
        run(client, "tty >/dev/null && echo terminal", get_pty=True),
    ]


def problem_of(deed: Callable[[], Any]) -> list[Any]:
    try:
        deed()
    except (paramiko.SSHException, OSError) as error:
        return [type(error).__name__, *map(str, error.args)]
    return []


def requests(client: paramiko.SSHClient) -> Any:
    """Unknown requests, in order among known ones; and signals and breaks, which few clients send."""
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


def ask(channel: paramiko.Channel, name: str, *more: str | int) -> bool:
    """True if a channel request, sent as paramiko sends its own, is granted."""
    message = paramiko.Message()
    message.add_byte(cMSG_CHANNEL_REQUEST)
    message.add_int(channel.remote_chanid)
    message.add_string(name)
    message.add_boolean(True)
    for one in more:
        message.add_int(one) if isinstance(one, int) else message.add_string(one)
    channel._event_pending()
    channel.transport._send_user_message(message)
    try:
        channel._wait_for_event()  # paramiko closes the channel on a refusal
    except paramiko.SSHException:
        return False
    return True


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
    cases: dict[str, Callable[[paramiko.SSHClient], Any]] = {one.__name__: one for one in (commands, requests)}
    print(json.dumps(cases[sys.argv[1]](client)))
    client.close()


if __name__ == "__main__":
    main()
