"""The relay: packets of type 80 and above go from one leg to the other unchanged.

One client connection, one pod connection. Channel numbers, windows, end of file, exit statuses and unknown requests
stay between the two ends, so there is no code per feature. Policy applies only to the packets that `packets.judge`
reads.

Rules:

* A leg is not read while the other one cannot take more, so a client that stops reading stops its job's output and
  costs no memory. The exception: a leg in a key exchange is read, because it could never finish otherwise; packets that
  arrive meanwhile for a blocked leg are counted, and too many bytes of them end the connection.
* The end of either leg ends the other, with the same reason.
* A program that was ended by a signal may be one of a job that is being stopped: its end, and that of its channel, wait
  until that is known (`release`). Data does not.
* A terminal line (`tell`) goes out between two packets, on terminals only, when the client's leg can take it and the
  client's window has room reserved for it, of which the pod does not know (`terminals`). It is neither activity nor
  traffic.
* Data packets are views of a shared buffer: kept parts must be copied (`fastpath`).
* Activity is bytes sent by users and programs: every byte of a channel without a terminal, and input to a terminal. A
  terminal's output is no activity, nor are keepalives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import asyncssh

from ssh_gateway.core import packets
from ssh_gateway.core.packets import Payload, RelayPolicy
from ssh_gateway.session import terminals
from ssh_gateway.session.terminals import TerminalLine
from ssh_gateway.transport import connection, fastpath, server

MOST_PENDING = 8 * 2**20
LONGEST_END = 1024  # bytes of a packet that tells the end of a program
PACKET_OVERHEAD = 256  # bytes that a packet takes in memory beside its content

_LOOKED_AT = frozenset({packets.GLOBAL_REQUEST, packets.CHANNEL_OPEN, packets.CHANNEL_REQUEST})
_REPLIES = frozenset({packets.REQUEST_SUCCESS, packets.REQUEST_FAILURE})
_DATA = frozenset({packets.CHANNEL_DATA, packets.CHANNEL_EXTENDED_DATA})


class Relay:
    """Two joined legs; it lives until either has ended."""

    def __init__(  # noqa: PLR0913  (two legs and what to do with them)
        self,
        client: server.Downstream,
        pod: connection.RelayConnection,
        policy: RelayPolicy,
        *,
        used: Callable[[], None],
        killed: Callable[[], None],
        keeps: Callable[[int, bytes], bool] | None = None,
        lines: Callable[[], Sequence[TerminalLine]] = tuple,
        refused: Callable[[str], None] = lambda _what: None,
        audit: Callable[[bytes, bool, int | None], None] = lambda _payload, _by_client, _channel: None,
    ) -> None:
        """Callbacks of the relay.

        ``used`` is called for activity, ``killed`` when a signal has ended a program, until `release`; ``keeps`` picks
        the packets that the client's leg answers by itself (``ssh -J``); ``lines`` returns the present terminal lines;
        ``refused`` receives what the policy removed. ``audit`` receives every other packet that is read, with True if
        the client sent it, and the client's number of its channel.
        """
        self._client = client
        self._upstream = pod
        self._policy = policy
        self._used = used
        self._killed = killed
        self._keeps = keeps
        self._lines = lines
        self._refused = refused
        self._audit = audit
        self._terminals = terminals.Terminals()
        self._proofs = packets.Proofs()
        self._untold = False
        self._held: dict[int, dict[int, bytes]] = {}  # by the client's number of a channel, and by type
        self._pending = {client: 0, pod: 0}
        self.bytes_up = 0
        self.bytes_down = 0

    def start(self) -> None:
        """Takes over; packets that the pod sent before wait in the client's leg until SUCCESS is out."""
        self._client.receive = self.from_client
        self._upstream.receive = self.from_upstream
        self._client.lane = fastpath.FastPath(
            self._client, self._upstream, lambda: not self._upstream.blocked, self._went_up
        )
        self._upstream.lane = fastpath.FastPath(
            self._upstream, self._client, lambda: not self._client.blocked, self._went_down
        )
        self._client.flow_changed = self._upstream.flow_changed = self.flow
        self.flow()

    def client_gone(self, why: str) -> None:
        """Closes the pod's side, with the client's own reason if there is one."""
        code, reason = self._client.disconnect_reason or (asyncssh.DISC_BY_APPLICATION, why)
        self._upstream.end(code, reason)

    def upstream_gone(self, why: str | None = None) -> None:
        """Closes the client's side, with the reason why the job has ended, or the sshd's own if there is one."""
        lost = (asyncssh.DISC_CONNECTION_LOST, "the connection to your job was lost")
        stopped = (asyncssh.DISC_BY_APPLICATION, why) if why else None
        self._client.end(*(stopped or self._upstream.disconnect_reason or lost))

    def release(self, why: str | None) -> None:
        """Tells the ends of programs that `killed` was called for; or closes, with the reason why the job has ended."""
        held, self._held = self._held, {}
        if why is not None:
            self._client.end(asyncssh.DISC_BY_APPLICATION, why)
        for number, ends in held.items():
            for kind, payload in ends.items():
                if why is None:
                    self._about_channels(kind, payload)
                elif kind == packets.CHANNEL_REQUEST:
                    self._audit(payload, False, number)

    def _hold(self, kind: int, payload: bytes) -> bool:
        """True for the end of a program by a signal, and the end of its channel, which are kept."""
        number = packets.number_at(payload, 1)
        if kind == packets.CHANNEL_REQUEST:
            known = number in self._terminals.screens and len(payload) <= LONGEST_END
            if not (known and packets.ended_by_signal(payload)):
                return False
        elif kind != packets.CHANNEL_CLOSE or number not in self._held:
            return False
        if not self._held:
            self._killed()
        self._held.setdefault(number, {})[kind] = payload[:LONGEST_END]
        return True

    def _went_up(self, _channel: int, size: int) -> None:
        self.bytes_up += size
        self._used()

    def _went_down(self, channel: int, size: int) -> None:
        self.bytes_down += size
        if channel not in self._terminals.shown_on:
            self._used()

    def from_client(self, kind: int, payload: Payload) -> bool:
        if kind in _DATA:
            self._went_up(packets.number_at(payload, 1), len(payload))
            return self._send(payload, self._client, self._upstream)
        payload = bytes(payload)
        if self._keeps is not None and self._keeps(kind, payload):
            return False
        if kind in terminals.FROM_CLIENT:
            for_pod = self._terminals.from_client(kind, payload)
            if kind == packets.CHANNEL_WINDOW_ADJUST and self._untold:
                self.tell()
            if for_pod is None:
                return True
            payload = for_pod
        elif kind == packets.GLOBAL_REQUEST:
            self._proofs.asked(payload, self._client.prove_host_keys)
        return self._pass(kind, payload, self._client, self._upstream)

    def from_upstream(self, kind: int, payload: Payload) -> bool:
        if kind in _DATA:
            self._went_down(packets.number_at(payload, 1), len(payload))
            return self._send(payload, self._upstream, self._client)
        payload = bytes(payload)
        if self._hold(kind, payload):
            return True
        if kind in _REPLIES:
            payload = self._proofs.answered(payload)
        return self._about_channels(kind, payload)

    def _about_channels(self, kind: int, payload: bytes) -> bool:
        if kind not in terminals.FROM_POD:
            return self._pass(kind, payload, self._upstream, self._client)
        granted = self._terminals.from_pod(kind, payload)
        self._pass(kind, payload, self._upstream, self._client)
        if granted:
            self.tell()
        return True

    def tell(self) -> None:
        """Writes the new lines on every terminal; a line without room now is written when there is room."""
        self._untold = False
        if self._client.ended:
            return
        for number, screen in self._terminals.screens.items():
            for line in self._lines() if screen.shows else ():
                if line.id in screen.told:
                    continue
                content = line.content[: min(screen.most, screen.longest)]
                if len(content) > screen.room or self._client.blocked:
                    self._untold = True
                    continue
                screen.told.add(line.id)
                screen.used += len(content)
                self._client.send_payload(packets.data(number, content))

    def _pass(
        self, kind: int, payload: bytes, source: connection.RelayConnection, sink: connection.RelayConnection
    ) -> bool:
        forward: bytes | None = payload
        if kind in _LOOKED_AT:
            verdict = packets.judge(payload, self._policy)
            forward = verdict.forward
            if verdict.answer is not None:
                source.send_payload(verdict.answer)
            if verdict.refused:
                self._refused(verdict.refused)
            else:
                self._audit(payload, source is self._client, self._channel(payload, source))
        return True if forward is None else self._send(forward, source, sink)

    def _send(self, payload: Payload, source: connection.RelayConnection, sink: connection.RelayConnection) -> bool:
        sink.send_payload(payload)
        if sink.blocked:
            self._count(len(payload) + PACKET_OVERHEAD, source, sink)
        return True

    def _channel(self, payload: bytes, source: connection.RelayConnection) -> int | None:
        """Returns the client's number of the channel to which a packet belongs."""
        if payload[0] == packets.CHANNEL_REQUEST:
            number = packets.number_at(payload, 1)
            return number if source is self._upstream else self._terminals.client_number.get(number)
        if payload[0] == packets.CHANNEL_OPEN and source is self._client:
            return int.from_bytes(packets.opener(payload), "big")
        return None

    def _count(self, size: int, source: connection.RelayConnection, sink: connection.RelayConnection) -> None:
        self._pending[sink] += size
        if self._pending[sink] > MOST_PENDING:
            source.end(asyncssh.DISC_PROTOCOL_ERROR, "too much data during a key exchange")

    def flow(self) -> None:
        for source, sink in ((self._client, self._upstream), (self._upstream, self._client)):
            if not sink.blocked:
                self._pending[sink] = 0
            source.read_on(source.rekeying or not (sink.blocked or sink.ended))
        if self._untold and not self._client.blocked:
            self.tell()
