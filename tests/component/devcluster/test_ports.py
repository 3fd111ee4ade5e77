"""NodePorts, and a real sshd behind one."""

import asyncio

from dlspawner.clients.kubernetes import SERVICES
from tests.component.devcluster.conftest import SECONDS, EmbeddedCluster

ECHO = """
import os, socket
server = socket.create_server((os.environ["POD_IP"], 9000))
while True:
    client, _ = server.accept()
    total = 0
    while data := client.recv(262144):
        total += len(data)
    client.sendall(str(total).encode())
    client.close()
"""


async def _service(embedded: EmbeddedCluster, app: str, target: int | str) -> int:
    spec = {"type": "NodePort", "selector": {"app": app}, "ports": [{"port": 80, "targetPort": target}]}
    service = await embedded.cluster.create(SERVICES, {"metadata": {"name": app, "namespace": "jobs"}, "spec": spec})
    return int(service["spec"]["ports"][0]["nodePort"])


async def _connect(ip: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                return await asyncio.open_connection(ip, port)
            except ConnectionRefusedError:  # the node has not heard of the Service yet
                await asyncio.sleep(0.01)


async def test_node_port_works_on_every_node_in_bulk_and_with_half_close(embedded: EmbeddedCluster) -> None:
    port = await _service(embedded, "echo", "sink")
    probe = {"tcpSocket": {"port": "sink"}}
    ports = [{"name": "sink", "containerPort": 9000}]
    await embedded.pod("echo", ["python3", "-c", ECHO], readinessProbe=probe, ports=ports)
    await embedded.ready("echo")
    size = 64 * 2**20
    for node in embedded.agent.nodes:
        reader, writer = await _connect(node.ip, port)
        writer.write(bytes(size))
        writer.write_eof()
        async with asyncio.timeout(SECONDS):
            assert await reader.read() == str(size).encode()
        writer.close()


async def test_node_port_without_a_ready_pod_is_closed_at_once(embedded: EmbeddedCluster) -> None:
    port = await _service(embedded, "nobody", 1)
    reader, writer = await _connect(embedded.agent.nodes[0].ip, port)
    async with asyncio.timeout(10):
        assert await reader.read() == b""
    writer.close()


async def test_deleted_service_releases_its_port(embedded: EmbeddedCluster) -> None:
    port = await _service(embedded, "brief", 1)
    _, writer = await _connect(embedded.agent.nodes[0].ip, port)
    writer.close()
    await embedded.cluster.delete(SERVICES, "brief", "jobs")
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                _, writer = await asyncio.open_connection(embedded.agent.nodes[0].ip, port)
                writer.close()
            except (ConnectionRefusedError, ConnectionResetError):
                return
            await asyncio.sleep(0.01)
