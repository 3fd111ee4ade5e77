"""A session: one user's connection after authentication. It cannot be made without a proven identity.

With ``user+server`` the pod is connected between the proven credential and SUCCESS, so that the reason of a failure can
still be shown. With ``user`` alone the gateway does not know yet if the client wants a shell on the default server or
``ssh -J`` to a job: the pod is connected when the first packet asks for it, and packets wait until then. Meanwhile the
client is read, because its disconnect would go unnoticed otherwise; the buffered packets are bounded (`PacketBuffer`).

``ssh -J user@gateway train`` is a ``direct-tcpip`` stream to a job's name, on which the gateway serves *itself*: one
path to secure and to test. Every other stream goes to the user's own pod, which is connected already, or is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import asyncssh

from dlspawner import tracing
from ssh_gateway.backends.directory import BackendUnavailable, SshEndpoint
from ssh_gateway.core import packets, routing
from ssh_gateway.core.proof import OpenSession
from ssh_gateway.log import say
from ssh_gateway.session import audit
from ssh_gateway.session.context import STOPPING, Client, JumpStream, SessionRefused
from ssh_gateway.session.relay import Relay
from ssh_gateway.session.terminals import TerminalLine, escaped
from ssh_gateway.session.upstream import Access, enter, find_server, on_lost
from ssh_gateway.transport import Upstream, connection

LOOK_SECONDS = 2.0  # the wait for a line about a default server that the login may not want
_TOUCH_SECONDS = 0.05
_CLUSTER_SEES = (0, 0.5, 1, 1.5)  # seconds between looks whether a job whose sshd is gone has ended


class Session:
    """One user, one client connection, and the connection to the pod."""

    def __init__(self, client: Client, access: Access) -> None:
        self.client = client
        self.access = access
        self.target: SshEndpoint | None = None  # set once the pod is connected
        self._relay: Relay | None = None
        self.listens = False  # a ``-R`` was asked for
        self.over = asyncio.Event()  # the connection to the pod has ended
        self._touched = float("-inf")
        self._buffered = PacketBuffer()

    @property
    def user(self) -> str:
        return self.access.identity.user

    @property
    def server(self) -> str | None:
        return self.target.server if self.target else None

    @property
    def job(self) -> str | None:
        return self.target.job if self.target else None

    @property
    def bytes_up(self) -> int:
        return self._relay.bytes_up if self._relay else 0

    @property
    def bytes_down(self) -> int:
        return self._relay.bytes_down if self._relay else 0

    def relay(self, target: SshEndpoint, pod: Upstream) -> None:
        """Relays between the client and the pod; SessionRefused if the client is gone."""
        client, gateway = self.client, self.client.gateway
        gateway.upstreams.add(pod)
        pod.number = client.number
        on_lost(pod, partial(self._upstream_gone, pod))
        if client.leg.ended:
            pod.end(asyncssh.DISC_BY_APPLICATION, "the client is gone")
            raise SessionRefused("the client is gone")
        self.target = target
        self._relay = relay = Relay(
            client.leg,
            pod,
            gateway.policy,
            used=self._used,
            killed=lambda: self._ask_then(relay.release),
            keeps=_is_ours if self.access.deferred else None,
            lines=self._lines,
            refused=self._refused_by_policy,
            audit=self._note,
        )
        relay.start()
        gateway.activity.opened(self.user, target.server)
        say("open", conn=client.number, user=self.user, server=target.server, job=target.job, pod=target.address)

    def client_gone(self) -> None:
        if self._relay is not None:
            self._relay.client_gone("the client is gone")

    def _upstream_gone(self, pod: Upstream) -> None:
        self.client.gateway.upstream_gone(pod)
        self.over.set()
        if self._relay is not None:
            self.client.gateway.activity.closed(self.user, self.server or "")
            self._relay.flow()  # the client is not read any more
            self._ask_then(self._relay.upstream_gone, _CLUSTER_SEES)

    def _ask_then(self, act: Callable[[str | None], None], delays: Sequence[float] = (0,)) -> None:
        """Acts on why the job has ended or is being stopped, or on None if it goes on, if the client is still there.

        ``delays``: before each time that it asks, until there is a reason.
        """

        async def ask() -> None:
            held = OpenSession(self.access.identity, self.server, self.job)
            why = None
            for delay in delays:
                await asyncio.sleep(delay)
                if (why := await self.client.gateway.revalidator.stop_reason(held)) is not None:
                    break
            act(escaped(why) if why else None)

        if not self.client.leg.ended:
            self.client.leg.create_task(ask())

    def tell(self) -> None:
        """Writes the new lines on this session's terminals."""
        if self._relay is not None:
            self._relay.tell()

    def _lines(self) -> list[TerminalLine]:
        gateway = self.client.gateway
        of_job = gateway.notices.lines(self.user, self.server or "", self.job) if gateway.notices else ()
        return [*of_job, *gateway.shutdown_lines]

    def _refused_by_policy(self, what: str) -> None:
        self.client.gateway.counters.refused("request")
        self.client.note("refused", user=self.user, what=what, why="the gateway's settings")

    def _note(self, payload: bytes, by_client: bool, channel: int | None) -> None:
        """Logs the audit event of a packet."""
        event = audit.read_audit_event(payload, by_client=by_client, commands=self.client.gateway.log_commands)
        if event is not None:
            self.listens = self.listens or event.name == "listen"
            self.client.note(event.name, channel=channel, by=None if by_client else "job", **event.fields)

    def _used(self) -> None:
        """Notes activity in the job; called for every packet, reports at most twenty times a second."""
        now = time.monotonic()  # the loop's clock would need a system call for each packet
        if now - self._touched >= _TOUCH_SECONDS:
            self._touched = now
            self.client.gateway.activity.touch(self.user, self.server or "")

    # A login without a server: before the pod is connected

    async def defer(self) -> None:
        """Connects later, when the first packets show what the client wants."""
        await self._announce()
        self.client.leg.receive = self._buffer

    async def _announce(self) -> None:
        """Shows the status of the default server if it waits: after SUCCESS a session cannot show a line."""
        gateway = self.client.gateway
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                if not self.access.identity.opens(""):
                    return
                if routing.find_job("", await gateway.job_directory.jobs(self.user)) is not None:
                    return
                line = await gateway.autostart.pending_message(self.user, "")
        except (BackendUnavailable, TimeoutError):
            return
        if line:
            self.client.show(line)

    def _buffer(self, kind: int, payload: bytes) -> bool:
        """Buffers the pod's packets until it is connected; the first packet that needs the pod connects it."""
        leg, buffered = self.client.leg, self._buffered
        if _is_ours(kind, payload):
            return False
        # Replies keep the order of requests: after a request to the pod, the pod has to answer these as well.
        asked = None if buffered.owes_answer else packets.asked(kind, payload)
        if asked == packets.KEEPALIVE:  # needs no pod; asyncssh answers it
            return False
        if asked == packets.PROVE_HOST_KEYS:
            # asyncssh would sign for as many keys as a client asks.
            if packets.wants_reply(payload):
                leg.send_payload(leg.prove_host_keys(payload) or bytes([packets.REQUEST_FAILURE]))
            return True
        if kind >= packets.CHANNEL_WINDOW_ADJUST and packets.number_at(payload, 1) >= connection.FIRST_OWN_CHANNEL:
            return True  # of a closed stream
        if not buffered.add(kind, payload):
            if packets.read_direct_tcpip(payload) is not None:  # of a browser behind ``-D``, whose connection stays
                leg.send_payload(packets.open_failure(packets.opener(payload), TOO_MANY_STREAMS))
            else:
                leg.end(asyncssh.DISC_PROTOCOL_ERROR, "too many requests before the first session")
            return True
        wants_pod = kind != packets.GLOBAL_REQUEST or packets.wants_reply(payload)
        if wants_pod and not buffered.connecting:
            buffered.connecting = True
            leg.create_task(self._connect_default(payload))
        return True

    async def _connect_default(self, asked: bytes) -> None:
        """Connects for the packet that needs the pod; all buffered packets are relayed in order."""
        try:
            with tracing.span("ssh session without a server", {"dlspawner.user": self.user}):
                self.relay(*await enter(self.client, self.access))
        except SessionRefused as refusal:
            is_stream = packets.read_direct_tcpip(asked) is not None
            jobs = await self._jobs_to_open() if is_stream else []
            if self.client.leg.ended or not is_stream:
                self.client.disconnect(self.user, refusal)
            else:
                self._refuse_streams(refusal, jobs)
            return
        for kind, payload in self._buffered.take():
            if self._relay is not None:
                self._relay.from_client(kind, payload)

    async def _jobs_to_open(self) -> list[routing.JobEndpoint]:
        with contextlib.suppress(BackendUnavailable):
            jobs = await self.client.gateway.job_directory.jobs(self.user)
            return [job for job in jobs if self.access.identity.opens(job.server)]
        return []

    def _refuse_streams(self, refusal: SessionRefused, jobs: Sequence[routing.JobEndpoint]) -> None:
        """Refuses the requested streams because there is no pod to open them; streams to jobs stay possible."""
        self._buffered.connecting = False
        for kind, payload in self._buffered.take():
            target = packets.read_direct_tcpip(payload)
            if target is None:
                self._buffer(kind, payload)
                continue
            there = f"{routing.printable(target.host)}:{target.port}"
            name = routing.jump_server(target.host, self.user)
            if name is not None and routing.find_job(name, jobs) is not None:
                reason = f"{there} is no port that ssh -J reaches: your job is at port 22, so leave out -p, or Port"
            else:
                reason = f"{there} is none of your jobs, and {refusal}"
            self.note_refused_stream(reason)
            self.client.leg.send_payload(packets.open_failure(packets.opener(payload), reason))

    # ssh -J

    async def serve_stream(self, host: str, port: int) -> Any:
        """Serves the gateway itself on a stream to one of the user's jobs; ChannelOpenError for every other stream."""
        client, gateway = self.client, self.client.gateway
        try:
            if gateway.stopping:
                raise SessionRefused(STOPPING)
            wanted = routing.jump_server(host, self.user)
            if wanted is None or not routing.is_jump(host, port):
                there = f"{routing.printable(host)}:{port}"
                raise SessionRefused(f"{there} is none of your jobs: ssh -J reaches those by name, and nothing else")
            if (why := gateway.penalties.opens(client.source, self.user, gateway.now())) is not None:
                raise SessionRefused(why)
            # The stream leads to a login of its own, which waits for what is started here.
            begin = partial(gateway.autostart.begin, self.user)
            name = await find_server(client, Access(self.access.identity, wanted), begin)
        except SessionRefused as refusal:
            self.note_refused_stream(refusal)
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, str(refusal)) from refusal
        client.note("stream", user=self.user, server=name)
        return gateway.make_leg(client.source, JumpStream(self.user, name, client))

    def note_refused_stream(self, why: object) -> None:
        self.client.gateway.counters.refused("stream")
        self.client.note("refused", user=self.user, what="stream", why=why)


def _is_ours(kind: int, payload: bytes) -> bool:
    """True for packets that the gateway answers itself, with or without a pod: the opening of a stream to a job."""
    if kind != packets.CHANNEL_OPEN:
        return False
    target = packets.read_direct_tcpip(payload)
    return target is not None and routing.is_jump(target.host, target.port)


MOST_PACKETS = 64
TOO_MANY_STREAMS = "too many streams wait for your default server: try again when it runs"
MOST_BYTES = 256 * 1024  # clients send a few hundred; one packet may be as large as all of this


@dataclass(slots=True)
class PacketBuffer:
    """Packets with their types, sent by a client before its pod is connected: in order, few packets and few bytes.

    ``connecting`` while the pod is being connected.
    """

    connecting: bool = False
    _packets: list[tuple[int, bytes]] = field(default_factory=list)
    _size: int = 0

    @property
    def owes_answer(self) -> bool:
        """True if one of the requests wants a reply."""
        return any(kind == packets.GLOBAL_REQUEST and packets.wants_reply(one) for kind, one in self._packets)

    def add(self, kind: int, payload: bytes) -> bool:
        """Keeps a packet; False, without keeping it, above the bounds."""
        if len(self._packets) >= MOST_PACKETS or self._size + len(payload) > MOST_BYTES:
            return False
        self._packets.append((kind, payload))
        self._size += len(payload)
        return True

    def take(self) -> list[tuple[int, bytes]]:
        """Returns all packets in order, and empties the buffer."""
        taken, self._packets, self._size = self._packets, [], 0
        return taken
