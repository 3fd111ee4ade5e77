"""The metrics of this gateway for Prometheus, in a registry of its own; no label names a user or an address.

Counters belong to this process: after a restart they begin at 0, as Prometheus expects. Present state and relayed bytes
are read at the scrape, so that no packet pays for them. The relay's duration is measured for one read of 64; the time
for which packets wait before that is the event loop's lag.

Also serves readiness for Kubernetes' probes, and the metrics, on a port of their own.

``/ready`` is 503 from the moment the process begins to stop, so that no new connection is sent here; ``/metrics`` is
for Prometheus; every other address is 200 until the end, also while open sessions drain: a restart repairs neither the
Hub nor the cluster. Refused: probes of the SSH port, each of which costs a log line and a key exchange every few
seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client import generate_latest as written
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from ssh_gateway.transport import sockets

METHODS = ("publickey", "password", "keyboard-interactive", "other")
REFUSALS = ("connection", "login", "session", "stream", "request")
STARTS = ("running", "not-started")
_RELAYS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1)
_LAGS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


@dataclass(frozen=True, slots=True)
class GatewayState:
    """Connections without a proven credential, all others, those connected to a job; and the bytes relayed."""

    unauthenticated: int = 0
    authenticated: int = 0
    sessions: int = 0
    up: int = 0
    down: int = 0
    penalised_addresses: int = 0
    penalised_names: int = 0
    stopping: bool = False


class GatewayMetrics:
    """All metrics of one process; ``inside`` is called at every scrape."""

    def __init__(self, inside: Callable[[], GatewayState] = GatewayState) -> None:
        self.inside = inside
        self.registry = own = CollectorRegistry()
        self._connections = Counter(
            "dlspawner_gateway_connections",
            "New connections, streams of ssh -J included, that may log in.",
            registry=own,
        )
        self._authentications = Counter(
            "dlspawner_gateway_authentications",
            "Credentials that were judged, by method and result (accepted, failed).",
            ["method", "result"],
            registry=own,
        )
        self._refusals = Counter(
            "dlspawner_gateway_refusals",
            "What was refused: a connection for its address, a login because there are too many, a session or a stream "
            "after the login, a request by policy.",
            ["what"],
            registry=own,
        )
        self._starts = Counter(
            "dlspawner_gateway_starts",
            "Logins that waited for a job that did not run, by what came of it: running, not-started.",
            ["result"],
            registry=own,
        )
        self.relay = Histogram(
            "dlspawner_gateway_relay_seconds",
            "From packets that were read, of one connection at once, to their being sent on; of one read of 64.",
            buckets=_RELAYS,
            registry=own,
        )
        self.loop_lag = Histogram(
            "dlspawner_gateway_loop_lag_seconds",
            "By how much the event loop was late, measured twice a second: how long a packet waits to be read.",
            buckets=_LAGS,
            registry=own,
        )
        for method in METHODS:
            for result in ("accepted", "failed"):
                self._authentications.labels(method, result)
        for result in STARTS:
            self._starts.labels(result)
        for what in REFUSALS:
            self._refusals.labels(what)
        own.register(_Now(self))
        ProcessCollector(registry=own)

    def text(self) -> bytes:
        return written(self.registry)

    def connected(self) -> None:
        """Counts a connection that may log in."""
        self._connections.inc()

    def judged(self, method: str, *, proven: bool) -> None:
        """Counts a credential by its result."""
        known = method if method in METHODS else "other"
        self._authentications.labels(known, "accepted" if proven else "failed").inc()

    def refused(self, what: str) -> None:
        """Counts one of `REFUSALS`."""
        self._refusals.labels(what).inc()

    def waited(self, *, runs: bool) -> None:
        """Counts the end of a login's wait for a job that did not run."""
        self._starts.labels("running" if runs else "not-started").inc()


class _Now(Collector):
    def __init__(self, meters: GatewayMetrics) -> None:
        self._meters = meters

    def describe(self) -> list[Metric]:
        return []  # making the registry must not collect

    def collect(self) -> Iterator[Metric]:
        now = self._meters.inside()
        open_ = GaugeMetricFamily("dlspawner_gateway_open_connections", "Open now.", labels=["state"])
        open_.add_metric(("unauthenticated",), now.unauthenticated)
        open_.add_metric(("authenticated",), now.authenticated)
        yield open_
        yield GaugeMetricFamily("dlspawner_gateway_sessions", "Connections joined with a job.", now.sessions)
        bytes_ = CounterMetricFamily(
            "dlspawner_gateway_bytes", "Data relayed, to jobs (up) and to people (down).", labels=["direction"]
        )
        bytes_.add_metric(("up",), now.up)
        bytes_.add_metric(("down",), now.down)
        yield bytes_
        penalised = GaugeMetricFamily(
            "dlspawner_gateway_penalised", "Addresses (IPv6: /64) and login names with a penalty.", labels=["kind"]
        )
        penalised.add_metric(("address",), now.penalised_addresses)
        penalised.add_metric(("name",), now.penalised_names)
        yield penalised
        yield GaugeMetricFamily("dlspawner_gateway_stopping", "1 from the first signal on.", int(now.stopping))


SECONDS = 5.0  # for a request to come
LONGEST = 8192  # bytes of a request


class ProbeHandler(RequestHandler):
    """Answers requests for health, readiness and metrics, whatever their method."""

    def initialize(self, ready: Callable[[], bool], metrics: Callable[[], bytes]) -> None:
        self._ready = ready
        self._metrics = metrics

    def prepare(self) -> None:
        if self.request.path == "/metrics":
            self.set_header("Content-Type", CONTENT_TYPE_LATEST)
            self.finish(self._metrics())
        elif self.request.path == "/ready" and not self._ready():
            self.set_status(503)
            self.finish("stopping\n")
        else:
            self.finish("ok\n")


def serve_health(ip: str, port: int, ready: Callable[[], bool], metrics: Callable[[], bytes]) -> HTTPServer:
    """Listens for requests of health, readiness and metrics; the caller stops the returned server."""
    parts = {"ready": ready, "metrics": metrics}
    application = Application([(r".*", ProbeHandler, parts)], log_function=lambda _handler: None)
    server = HTTPServer(
        application,
        no_keep_alive=True,
        idle_connection_timeout=SECONDS,
        body_timeout=SECONDS,
        max_header_size=LONGEST,
        max_body_size=LONGEST,
    )
    listening = sockets.listen(ip, port)
    listening.setblocking(False)
    server.add_socket(listening)
    return server
