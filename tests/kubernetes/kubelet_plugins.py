"""A device plugin and a DRA driver of ours, which speak the real kubelet's API: gRPC on unix sockets in its directory.

They hand out nothing but a variable with the devices' names. Messages are written by hand: they have few fields.

https://github.com/kubernetes/kubelet/blob/v0.34.4/pkg/apis/deviceplugin/v1beta1/api.proto
https://github.com/kubernetes/kubelet/blob/v0.34.4/pkg/apis/pluginregistration/v1/api.proto
https://github.com/kubernetes/kubelet/blob/v0.34.4/pkg/apis/dra/v1/api.proto
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import empty_pb2, unknown_fields

Field = tuple[int, "bytes | str"]


def encode(*fields: Field) -> bytes:
    """A message of texts and messages by their numbers; all are shorter than 16 KiB."""
    written = b""
    for number, value in fields:
        content = value.encode() if isinstance(value, str) else value
        size = len(content)
        length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
        written += bytes([number << 3 | 2]) + length + content
    return written


def decode(message: bytes) -> list[tuple[int, bytes]]:
    """The texts and messages of a message, with their numbers."""
    found = unknown_fields.UnknownFieldSet(empty_pb2.Empty.FromString(message))
    return [(one.field_number, one.data) for one in found]


def texts(message: bytes, number: int) -> list[str]:
    return [content.decode() for one, content in decode(message) if one == number]


Answer = Callable[[bytes], bytes]


@contextlib.contextmanager
def serving(
    socket: Path, service: str, answers: Mapping[str, Answer], streams: Mapping[str, Callable[..., Any]] | None = None
) -> Iterator[None]:
    """A gRPC service with these methods; one with a stream gets its context."""
    handlers: dict[str, Any] = {
        name: grpc.unary_unary_rpc_method_handler(lambda message, _, answer=answer: answer(message))
        for name, answer in answers.items()
    }
    handlers |= {name: grpc.unary_stream_rpc_method_handler(stream) for name, stream in (streams or {}).items()}
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    socket.parent.mkdir(parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()
        socket.unlink(missing_ok=True)


@contextlib.contextmanager
def device_plugin(kubelet: Path, resource: str, devices: Sequence[str]) -> Iterator[None]:
    """So many devices of a resource; ``kubelet`` is the node's /var/lib/kubelet, whatever its root directory."""
    folder, stopped = kubelet / "device-plugins", threading.Event()
    endpoint = f"{resource.replace('/', '_')}.sock"

    def watch(_: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield encode(*((1, encode((1, name), (2, "Healthy"))) for name in devices))
        while context.is_active() and not stopped.wait(1):
            pass

    def allocate(message: bytes) -> bytes:
        asked = [texts(content, 1) for _, content in decode(message)]
        variables = (encode((1, encode((1, "TEST_DEVICES"), (2, ",".join(sorted(names)))))) for names in asked)
        return encode(*((1, one) for one in variables))

    answers: dict[str, Answer] = {"GetDevicePluginOptions": lambda _: b"", "Allocate": allocate}
    with serving(folder / endpoint, "v1beta1.DevicePlugin", answers, {"ListAndWatch": watch}):
        with grpc.insecure_channel(f"unix://{folder / 'kubelet.sock'}") as channel:
            register = channel.unary_unary("/v1beta1.Registration/Register")
            register(encode((1, "v1beta1"), (2, endpoint), (3, resource)), timeout=60)
        try:
            yield
        finally:
            stopped.set()


@contextlib.contextmanager
def dra_driver(kubelet: Path, name: str) -> Iterator[list[str]]:
    """A driver that prepares every claim, at the kubelet's root directory; yields the names of those claims."""
    endpoint, prepared = kubelet / "plugins" / name / "dra.sock", list[str]()

    def for_each_claim(message: bytes) -> bytes:
        claims = [dict(decode(content)) for _, content in decode(message)]
        return encode(*((1, encode((1, claim[2]), (2, b""))) for claim in claims))

    def prepare(message: bytes) -> bytes:
        prepared.extend(dict(decode(content))[3].decode() for _, content in decode(message))
        return for_each_claim(message)

    answers = {"NodePrepareResources": prepare, "NodeUnprepareResources": for_each_claim}
    told = encode((1, "DRAPlugin"), (2, name), (3, str(endpoint)), (4, "v1.DRAPlugin"))
    registration: dict[str, Answer] = {"GetInfo": lambda _: told, "NotifyRegistrationStatus": lambda _: b""}
    with (
        serving(endpoint, "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", answers),
        serving(kubelet / "plugins_registry" / f"{name}.sock", "pluginregistration.Registration", registration),
    ):
        yield prepared
