"""Exec through the API server with each kubectl, and the node's own protocols."""

import asyncio
import hashlib
import os
import pty
import time

from hypothesis import given
from hypothesis import strategies as st

from dlspawner.devcluster.node.streaming import spdy
from tests.component.devcluster.conftest import SECONDS, EmbeddedCluster


async def test_exec_carries_large_input_and_output(embedded: EmbeddedCluster, kubectl: str) -> None:
    await embedded.pod("box", "exec sleep 60")
    await embedded.ready("box")
    data = bytes(range(256)) * 4096
    script = "cat > /tmp/f; wc -c < /tmp/f; md5sum < /tmp/f"
    code, text = await embedded.kubectl("exec", "-i", "box", "--", "sh", "-c", script, program=kubectl, stdin=data)
    assert (code, text.split()[:2]) == (0, [str(len(data)), hashlib.md5(data, usedforsecurity=False).hexdigest()])
    code, text = await embedded.kubectl("exec", "box", "--", "head", "-c", "3000000", "/dev/zero", program=kubectl)
    assert (code, len(text)) == (0, 3_000_000)


async def test_exec_has_a_terminal(embedded: EmbeddedCluster, kubectl: str) -> None:
    await embedded.pod("term", "exec sleep 60")
    await embedded.ready("term")
    master, slave = pty.openpty()
    os.set_blocking(master, False)
    process = await asyncio.create_subprocess_exec(
        kubectl,
        *("exec", "-it", "term", "--", "sh", "-c", "stty size; tty; read line; echo got $line; exit 5"),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=os.environ | {"KUBECONFIG": str(embedded.kubeconfig)},
    )
    os.close(slave)
    try:
        await _read_until(master, b"/dev/pts/0")
        os.write(master, b"word\n")
        await _read_until(master, b"got word")
        async with asyncio.timeout(SECONDS):
            assert await process.wait() == 5
    finally:
        os.close(master)


async def _read_until(fd: int, wanted: bytes) -> bytes:
    seen = b""
    until = time.monotonic() + SECONDS
    while wanted not in seen:
        assert time.monotonic() < until, seen
        try:
            seen += os.read(fd, 4096)
        except BlockingIOError:
            await asyncio.sleep(0.01)
    return seen


async def test_kubelet_needs_the_clusters_token(embedded: EmbeddedCluster) -> None:
    node = embedded.agent.nodes[0]
    for token, status in (("", b"401"), ("Bearer wrong", b"401"), (f"Bearer {embedded.cluster.token}", b"404")):
        reader, writer = await asyncio.open_connection(node.ip, node._port)
        writer.write(f"GET /containerLogs/a/b/c HTTP/1.1\r\nAuthorization: {token}\r\n\r\n".encode())
        assert (await reader.readline()).split()[1] == status
        writer.close()


@given(st.lists(st.binary(max_size=3000), max_size=5), st.integers(1, 700))
def test_spdy_frames_may_come_in_any_pieces(parts: list[bytes], size: int) -> None:
    client, server = spdy.Framer(), spdy.Framer()
    wire = client.open(1, {"streamtype": "stdin"}) + client.open(3, {"streamtype": "error"})
    wire += b"".join(client.data(1, part) for part in parts) + client.data(1, b"", fin=True)
    events = [e for start in range(0, len(wire), size) for e in server.receive(wire[start : start + size])]
    assert events[:2] == [
        spdy.Opened(1, {"streamtype": "stdin"}, False),
        spdy.Opened(3, {"streamtype": "error"}, False),
    ]
    assert events[2:] == [*(spdy.Data(1, part, False) for part in parts), spdy.Data(1, b"", True)]
