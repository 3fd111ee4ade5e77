"""Logs and exec: what the embedded server passes on to a node's kubelet, and what comes back."""

import contextlib
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from tests.contract.client import Client, pod
from tests.contract.conftest import NodeMaker
from tests.harness.ports import free_port

BIG = 8 * 1024 * 1024


@dataclass
class Kubelet:
    """A kubelet that answers every connection with one function, and remembers the requests' heads."""

    port: int = 0
    heads: list[str] = field(default_factory=list)
    serve: Callable[[socket.socket, bytes], None] = lambda connection, head: None


@pytest.fixture
def kubelet() -> Iterator[Kubelet]:
    state = Kubelet()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            received = b""
            while b"\r\n\r\n" not in received:
                received += self.request.recv(65536)
            head, _, rest = received.partition(b"\r\n\r\n")
            state.heads.append(head.decode())
            with contextlib.suppress(OSError):  # the other side went first: some tests want that
                state.serve(self.request, rest)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        state.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield state
        server.shutdown()
        thread.join()


@pytest.fixture
def running(cluster: Client, pods: str, make_node: NodeMaker, kubelet: Kubelet) -> str:
    """A pod on a node of ours."""
    node = make_node()
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.port}},
    }
    cluster.patched(f"/api/v1/nodes/{node}/status", {"status": status})
    cluster.create(pods, pod(nodeName=node))
    cluster.patched(f"{pods}/p/status", {"status": {"phase": "Running"}})
    return f"{pods}/p"


def _answer(body: bytes, code: str = "200 OK") -> Callable[[socket.socket, bytes], None]:
    def serve(connection: socket.socket, _: bytes) -> None:
        head = f"HTTP/1.1 {code}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)

    return serve


def test_logs_come_from_the_kubelet(cluster: Client, running: str, kubelet: Kubelet, namespace: str) -> None:
    kubelet.serve = _answer("eins\nzwei ✓\n".encode())
    answer = cluster.request("GET", f"{running}/log", query={"tailLines": "2", "timestamps": "true", "pretty": "1"})
    assert (answer.code, answer.raw.decode()) == (200, "eins\nzwei ✓\n")
    first, *headers = kubelet.heads[0].split("\r\n")
    assert first == f"GET /containerLogs/{namespace}/p/main?tailLines=2&timestamps=true HTTP/1.1"
    assert cluster.headers["Authorization"] in "".join(headers)


def test_kubelets_refusal_becomes_a_status(cluster: Client, running: str, kubelet: Kubelet) -> None:
    kubelet.serve = _answer(b"previous terminated container not found", "400 Bad Request")
    status = cluster.expect(400, "GET", f"{running}/log", previous="true")
    assert (status["reason"], status["message"]) == ("BadRequest", "previous terminated container not found")


def test_kubelet_that_does_not_answer_is_an_error(cluster: Client, running: str, kubelet: Kubelet) -> None:
    node = cluster.get(running)["spec"]["nodeName"]
    status = {"daemonEndpoints": {"kubeletEndpoint": {"Port": free_port()}}}
    cluster.patched(f"/api/v1/nodes/{node}/status", {"status": status})
    for path, headers in (("log", {}), ("exec?command=true", {"Connection": "Upgrade", "Upgrade": "SPDY/3.1"})):
        answer = cluster.request("GET", f"{running}/{path}", headers=headers)
        assert (answer.code, answer.json["reason"]) == (500, "InternalError")
        assert "error dialing backend" in answer.json["message"]


def _upgrade(cluster: Client, path: str) -> socket.socket:
    raw = socket.create_connection((str(cluster.server.hostname), cluster.server.port or 0), timeout=60)
    stream = cluster.context.wrap_socket(raw, server_hostname="localhost")
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Connection: Upgrade", "Upgrade: SPDY/3.1", "Content-Length: 0"]
    lines += ["X-Stream-Protocol-Version: v4.channel.k8s.io", f"Authorization: {cluster.headers['Authorization']}"]
    stream.sendall("\r\n".join([*lines, "", ""]).encode())
    return stream


def _read(stream: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size and (chunk := stream.recv(65536)):
        received += chunk
    return bytes(received)


SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"


def test_end_of_one_side_ends_the_other(cluster: Client, running: str, kubelet: Kubelet) -> None:
    ended = threading.Event()

    def serve(connection: socket.socket, _: bytes) -> None:
        connection.sendall(SWITCH + b"bye")
        connection.recv(1)
        ended.set()

    kubelet.serve = serve
    with _upgrade(cluster, f"{running}/exec?command=true") as stream:
        assert _read(stream, len(SWITCH) + 3).endswith(b"bye")
    assert ended.wait(60)


def test_reader_that_stops_reading_stops_the_kubelet(cluster: Client, running: str, kubelet: Kubelet) -> None:
    sent = []
    stuck = threading.Event()

    def serve(connection: socket.socket, _: bytes) -> None:
        connection.sendall(SWITCH)
        connection.settimeout(1)
        try:
            while sum(sent) < 20 * BIG:
                sent.append(connection.send(b"x" * 65536))
        except TimeoutError:
            stuck.set()

    kubelet.serve = serve
    with _upgrade(cluster, f"{running}/exec?command=yes") as stream:
        _read(stream, len(SWITCH))
        assert stuck.wait(60)
    assert sum(sent) < 5 * BIG
