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
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import asyncssh

from ssh_gateway import log, transport
from ssh_gateway.backends.directory import BackendUnavailable
from ssh_gateway.core import packets, routing
from ssh_gateway.core.certificates import SessionBounds
from ssh_gateway.core.packets import GLOBAL_REQUEST, open_failure, opener, read_direct_tcpip, wants_reply
from ssh_gateway.core.proof import Identity, OpenSession
from ssh_gateway.log import say
from ssh_gateway.session import audit, upstream
from ssh_gateway.session.autostart import StartFailed, WaitingLogin
from ssh_gateway.session.context import GatewayContext, JumpStream
from ssh_gateway.session.relay import Relay
from ssh_gateway.session.shutdown import STOPPING
from ssh_gateway.session.terminals import TerminalLine
from ssh_gateway.transport import connection
from ssh_gateway.transport import server as transport_server

MOST_PROOFS = (
    4  # proofs of host keys, requested once by a client, before the pod is connected; each is a few signatures
)
LOOK_SECONDS = 2.0  # the wait for a line about a default server that the login may not want
_TOUCH_SECONDS = 0.05
MOST_ASKING = 64  # streams of one connection with a pending request to the cluster

Answer = TypeVar("Answer")


class SessionRefused(Exception):
    """The request of a known user is refused; the message is for the user."""


class Session:
    """One user, one client connection, and the connection to the pod."""

    def __init__(  # noqa: PLR0913, PLR0917  (user, target, identity, bounds)
        self,
        server: GatewayContext,
        leg: transport_server.Downstream,
        proof: Identity,
        number: str,
        source: str,
        bounds: SessionBounds,
    ) -> None:
        self._server = server
        self._leg = leg
        self._number = number
        self._source = source
        self._bounds = bounds
        self._relay: Relay | None = None
        self._buffered = PacketBuffer()
        self._connecting = False
        self._undecided = False
        self._asking = 0
        self._proofs = 0
        self.proof = proof
        self._touched = float("-inf")
        self.budget = log.LogBudget()
        self.server_name: str | None = None
        self.job: str | None = None

    @property
    def bytes_up(self) -> int:
        return self._relay.bytes_up if self._relay else 0

    @property
    def bytes_down(self) -> int:
        return self._relay.bytes_down if self._relay else 0

    def defer_connect(self) -> None:
        """Connects later, when the first packets show what the client wants."""
        self._undecided = True
        self._leg.receive = self._buffer

    async def announce(self) -> None:
        """Shows the status of the default server if it waits: after SUCCESS a session cannot show a line."""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                words = await self._pending_message()
        except (BackendUnavailable, TimeoutError):
            return
        if words:
            self._say(words)

    async def _pending_message(self) -> str:
        user = self.proof.user
        if not self.proof.opens("") or routing.find_job("", await self._server.job_directory.jobs(user)) is not None:
            return ""
        return await self._server.autostart.pending_message(user, "")

    async def connect(self, wanted: str) -> None:
        """Connects to the pod of a server and begins to relay; raises SessionRefused."""
        self.server_name = name = await self._resolve(wanted, self._start_and_wait)
        target = await _need(self._server.job_directory.endpoint(self.proof.user, name))
        if target is None:
            raise SessionRefused(f"{name or 'your default server'} is not ready: try again in a moment")
        try:
            version, server = str(self._leg.get_extra_info("client_version", "")), self._server
            leg = await upstream.connect_upstream(
                target, server.keys.user_ca, server.policy, self._bounds, version, server.limits.connect_seconds
            )
        except upstream.UpstreamUnreachable as problem:
            say("pod", level=logging.WARNING, conn=self._number, user=self.proof.user, server=name, **problem.fields)
            raise SessionRefused(str(problem)) from problem
        self._join(leg)
        self.job = target.job
        say("open", conn=self._number, user=self.proof.user, server=name, job=target.job, pod=target.address)

    def client_gone(self) -> None:
        if self._relay is not None:
            self._relay.client_gone("the client is gone")

    def open_session(self) -> OpenSession:
        """Returns the data for revalidation."""
        return OpenSession(self.proof, self.server_name if self.job else None, self.job)

    def end(self, why: str) -> None:
        """Ends the session because access has ended; does nothing if the client is gone already."""
        if self._leg.ended:
            return
        say("ended", conn=self._number, user=self.proof.user, server=self.server_name, job=self.job, why=why)
        self._leg.end(asyncssh.DISC_BY_APPLICATION, why)

    def tell(self) -> None:
        """Writes the new lines on this session's terminals."""
        if self._relay is not None:
            self._relay.tell()

    def _lines(self) -> list[TerminalLine]:
        notices = self._server.notices
        of_job = notices.lines(self.proof.user, self.server_name or "", self.job) if notices else ()
        return [*of_job, *self._server.shutdown_lines]

    def _join(self, pod_leg: transport.Upstream) -> None:
        self._server.upstreams.add(pod_leg)
        pod_leg.number = self._number
        upstream.on_lost(pod_leg, partial(self._upstream_gone, pod_leg))
        if self._leg.ended:
            pod_leg.end(asyncssh.DISC_BY_APPLICATION, "the client is gone")
            raise SessionRefused("the client is gone")
        self._relay = Relay(
            self._leg,
            pod_leg,
            self._server.policy,
            used=self._used,
            keeps=self._is_ours if self._undecided else None,
            lines=self._lines,
            refused=self._refused_by_policy,
            audit=self._note,
        )
        self._relay.start()
        self._server.activity.opened(self.proof.user, self.server_name or "")

    def _refused_by_policy(self, what: str) -> None:
        self._server.counters.refused("request")
        if self.budget.take(self._server.now()):
            say("refused", conn=self._number, user=self.proof.user, what=what, why="the gateway's settings")

    def _note(self, payload: bytes, by_client: bool, channel: int | None) -> None:
        """Logs the audit event of a packet."""
        event = audit.read_audit_event(payload, by_client=by_client, commands=self._server.log_commands)
        if event is not None and self.budget.take(self._server.now()):
            by = None if by_client else "job"
            say(event.name, conn=self._number, channel=channel, by=by, **event.fields)

    def _upstream_gone(self, pod_leg: transport.Upstream) -> None:
        self._server.upstream_gone(pod_leg)
        if self._relay is not None:
            self._server.activity.closed(self.proof.user, self.server_name or "")
            self._relay.upstream_gone()

    async def _resolve(self, wanted: str, start: Callable[[str], Awaitable[bool]]) -> str:
        """Returns the exact name of a server that this identity can enter; SessionRefused with a sentence that helps.

        ``start`` is called for a server that does not run; it returns True if the job runs now, or will for a login
        that waits.
        """
        user = self.proof.user
        jobs = await _need(self._server.job_directory.jobs(user))
        found = routing.find_job(wanted, jobs)
        servers: frozenset[str] = frozenset()
        if found is None:
            with contextlib.suppress(BackendUnavailable):
                servers = await self._server.auth_backend.servers(user)
        name = found.server if found else routing.known_as(wanted, servers)
        if not self.proof.opens(name):  # existing or not
            told = routing.printable(name) or "your default server"
            raise SessionRefused(f"this token may not open {told}: make one that may access it")
        may_wait = self._server.autostart.seconds and self.proof.starts(name)
        comes = found is None or found.condition is routing.JobCondition.STARTING
        if may_wait and comes and await self._started(start, name):
            return name
        mine = [job for job in jobs if self.proof.opens(job.server)]
        problem = routing.refusal(user, wanted, mine, servers, self._server.hub_public_url)
        if problem is not None or found is None:
            raise SessionRefused(problem or "no such job")
        return found.server

    async def _started(self, start: Callable[[str], Awaitable[bool]], name: str) -> bool:
        if self.budget.take(self._server.now()):  # logged before the start: a client may disconnect meanwhile
            say("start", conn=self._number, user=self.proof.user, server=name)
        try:
            return await start(name)
        except StartFailed as problem:
            if problem.refused:  # repeated attempts are penalised
                self._server.penalties.left(self._source, late=False, now=self._server.now())
            raise SessionRefused(str(problem)) from problem

    async def _start_and_wait(self, name: str) -> bool:
        """Starts a server and waits until it runs, with progress lines on the login's banner."""
        user, starts = self.proof.user, self._server.autostart
        self._leg.take_longer(starts.seconds + self._server.limits.login_seconds)

        async def ready() -> bool:
            with contextlib.suppress(BackendUnavailable):
                return await self._server.job_directory.endpoint(user, name) is not None
            return False

        try:
            brought = await starts.start_and_wait(WaitingLogin(user, name, ready, lambda: self._leg.ended, self._say))
        except StartFailed:
            self._server.counters.waited(runs=False)
            raise
        if brought:
            self._server.counters.waited(runs=True)
            say("started", conn=self._number, user=user, server=name)
            if (why := await self._server.refusal_now(OpenSession(self.proof, name))) is not None:
                raise StartFailed(why)
        return brought

    def _say(self, sentence: str) -> None:
        with contextlib.suppress(OSError):  # raised after SUCCESS, when no banner is possible
            self._leg.send_auth_banner(f"{sentence}\r\n")

    def _used(self) -> None:
        """Notes activity in the job; called for every packet, reports at most twenty times a second."""
        now = time.monotonic()  # the loop's clock would need a system call for each packet
        if now - self._touched >= _TOUCH_SECONDS:
            self._touched = now
            self._server.activity.touch(self.proof.user, self.server_name or "")

    # Before the pod is connected

    def _buffer(self, kind: int, payload: bytes) -> bool:
        """Buffers the pod's packets until it is connected; the first packet that needs the pod connects it."""
        if self._is_ours(kind, payload):
            return False
        # Replies keep the order of requests: after a request to the pod, the pod has to answer these as well.
        asked = None if self._buffered.owes_answer else packets.asked(kind, payload)
        if asked == packets.KEEPALIVE:  # needs no pod; asyncssh answers it
            return False
        if asked == packets.PROVE_HOST_KEYS:
            self._prove_host_keys(payload)
            return True
        if kind >= packets.CHANNEL_WINDOW_ADJUST and packets.number_at(payload, 1) >= connection.FIRST_OWN_CHANNEL:
            return True  # of a closed stream
        if not self._buffered.add(kind, payload):
            if (answer := overflow_answer(payload)) is not None:
                self._leg.send_payload(answer)
            else:
                self._leg.end(asyncssh.DISC_PROTOCOL_ERROR, "too many requests before the first session")
            return True
        wants_pod = kind != packets.GLOBAL_REQUEST or packets.wants_reply(payload)
        if wants_pod and not self._connecting:
            self._connecting = True
            self._leg.create_task(self._connect_default(payload))
        return True

    def _prove_host_keys(self, payload: bytes) -> None:
        """Answers a request for proofs of host keys; asyncssh would sign as often, and for as many keys, as a client
        asks.
        """
        if packets.wants_reply(payload):
            self._proofs += 1
            proof = self._leg.prove_host_keys(payload) if self._proofs <= MOST_PROOFS else None
            self._leg.send_payload(proof or bytes([packets.REQUEST_FAILURE]))

    async def _connect_default(self, asked: bytes) -> None:
        """Connects for the packet that needs the pod; all buffered packets are relayed in order."""
        try:
            await self.connect("")
        except SessionRefused as refusal:
            is_stream = packets.read_direct_tcpip(asked) is not None
            jobs = await self._jobs_to_open() if is_stream else []
            if self._leg.ended or not is_stream:
                self.disconnect(refusal)
            else:
                self._refuse_streams(refusal, jobs)
            return
        for kind, payload in self._buffered.take():
            if self._relay is not None:
                self._relay.from_client(kind, payload)

    async def _jobs_to_open(self) -> list[routing.JobEndpoint]:
        with contextlib.suppress(BackendUnavailable):
            jobs = await self._server.job_directory.jobs(self.proof.user)
            return [job for job in jobs if self.proof.opens(job.server)]
        return []

    def _refuse_streams(self, refusal: SessionRefused, jobs: Sequence[routing.JobEndpoint]) -> None:
        """Refuses the requested streams because there is no pod to open them; streams to jobs stay possible."""
        self._connecting = False
        for kind, payload in self._buffered.take():
            wish = packets.read_direct_tcpip(payload)
            if wish is None:
                self._buffer(kind, payload)
                continue
            there = f"{routing.printable(wish.host)}:{wish.port}"
            name = routing.jump_server(wish.host, self.proof.user)
            if name is not None and routing.find_job(name, jobs) is not None:
                reason = f"{there} is no port that ssh -J reaches: your job is at port 22, so leave out -p, or Port"
            else:
                reason = f"{there} is none of your jobs, and {refusal}"
            self.note_refused_stream(reason)
            self._leg.send_payload(packets.open_failure(packets.opener(payload), reason))

    def disconnect(self, refusal: SessionRefused) -> None:
        """Sends the reason twice: some clients show the banner, some the reason of the disconnect."""
        self._server.counters.refused("session")
        say("refused", conn=self._number, user=self.proof.user, what="session", why=refusal)
        self._say(str(refusal))
        self._leg.end(asyncssh.DISC_SERVICE_NOT_AVAILABLE, str(refusal))

    # ssh -J

    def _is_ours(self, kind: int, payload: bytes) -> bool:
        """True for packets that the gateway answers itself, with or without a pod: the opening of a stream to a job."""
        if kind == packets.CHANNEL_OPEN:
            wish = packets.read_direct_tcpip(payload)
            return wish is not None and routing.is_jump(wish.host, wish.port)
        return False

    async def serve_stream(self, host: str, port: int) -> Any:
        """Serves the gateway itself on a stream to one of the user's own jobs; ChannelOpenError for every other
        stream.
        """
        try:
            if self._server.stopping:
                raise SessionRefused(STOPPING)
            wanted = routing.jump_server(host, self.proof.user)
            if wanted is None or not routing.is_jump(host, port):
                there = f"{routing.printable(host)}:{port}"
                raise SessionRefused(f"{there} is none of your jobs: ssh -J reaches those by name, and nothing else")
            if (why := self._server.penalties.opens(self._source, self.proof.user, self._server.now())) is not None:
                raise SessionRefused(why)
            name = await self._resolve_stream(wanted)
        except SessionRefused as refusal:
            self.note_refused_stream(refusal)
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, str(refusal)) from refusal
        if self.budget.take(self._server.now()):
            say("stream", conn=self._number, user=self.proof.user, server=name)
        return self._server.make_leg(JumpStream(self.proof.user, name, self._source, self._number, self.budget))

    async def _resolve_stream(self, wanted: str) -> str:
        if self._asking >= MOST_ASKING:
            raise SessionRefused("too many streams are being opened: try again in a moment")
        self._asking += 1
        try:
            # The stream leads to a login of its own, which waits for what is started here.
            return await self._resolve(wanted, partial(self._server.autostart.begin, self.proof.user))
        finally:
            self._asking -= 1

    def note_refused_stream(self, why: object) -> None:
        self._server.counters.refused("stream")
        if self.budget.take(self._server.now()):
            say("refused", conn=self._number, user=self.proof.user, what="stream", why=why)


async def _need(question: Awaitable[Answer]) -> Answer:
    """Returns an answer of a backend; SessionRefused if the backend is unavailable."""
    try:
        return await question
    except BackendUnavailable as problem:
        raise SessionRefused(str(problem)) from problem


MOST_PACKETS = 64
TOO_MANY_STREAMS = "too many streams wait for your default server: try again when it runs"
MOST_BYTES = 256 * 1024  # clients send a few hundred; one packet may be as large as all of this


@dataclass(slots=True)
class PacketBuffer:
    """Packets with their types, sent by a client before its pod is connected: in order, few packets and few bytes."""

    _packets: list[tuple[int, bytes]] = field(default_factory=list)
    _size: int = 0

    @property
    def owes_answer(self) -> bool:
        """True if one of the requests wants a reply."""
        return any(kind == GLOBAL_REQUEST and wants_reply(payload) for kind, payload in self._packets)

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


def overflow_answer(payload: bytes) -> bytes | None:
    """Returns the answer to a stream beyond the bounds, which leaves the connection open: a browser behind ``-D``.

    None for every other packet.
    """
    return None if read_direct_tcpip(payload) is None else open_failure(opener(payload), TOO_MANY_STREAMS)
