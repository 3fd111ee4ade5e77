"""Traces of a login, a start and a queued job, as a collector receives them: OTLP over HTTP, from three processes."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from typing import Any

import asyncssh
import pytest
import requests
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.component.manager.quota import GPUS, TEMPLATE, QuotaHub, running
from tests.e2e.people import wait_for
from tests.harness.ports import free_port
from tests.harness.spawner_hub import Person

USE = """
from dlspawner import tracing
tracing.start("tests")
with tracing.span("start", {}):
    tracing.event("ready")
    tracing.inject({})
print(sys.modules.get("opentelemetry"))
"""
SSH = {"endpoints": [{"name": "ssh", "port": 2222, "protocol": "ssh", "expose": "nodeport"}], "start_on_connect": True}
START, ADMISSION = "dlspawner-hub: start", "dlspawner-manager: PUT AdmissionHandler"
ASKED = "dlspawner-manager: POST SshStartHandler"
CALLERS = "4bf92f3577b34da6a3ce929d0e0e4736"


@dataclass(frozen=True)
class Span:
    service: str
    name: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    events: tuple[str, ...]
    failed: bool


class Collector(ThreadingHTTPServer):
    """What OpenTelemetry's collector is for its clients: POST /v1/traces with protobuf."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.spans: list[Span] = []

    def trace(self, *wanted: str, trace: str = "") -> list[Span]:
        """The spans of these names, of this trace or the first one that has all of them."""

        def found() -> list[Span]:
            traces: dict[str, dict[str, Span]] = {}
            for span in list(self.spans):
                traces.setdefault(span.trace, {})[f"{span.service}: {span.name}"] = span
            whole = (spans for of, spans in traces.items() if trace in of and spans.keys() >= {*wanted})
            return [spans[name] for spans in islice(whole, 1) for name in wanted]

        return wait_for(found, f"a trace with {', '.join(wanted)}")


class Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/x-protobuf")
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = _read(resource.resource.attributes)["service.name"]
            self.server.spans += [_span(service, span) for scope in resource.scope_spans for span in scope.spans]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing: tests print what fails."""


def _span(service: str, span: Any) -> Span:
    ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
    events = tuple(event.name for event in span.events)
    return Span(service, span.name, *ids, _read(span.attributes), events, span.status.code == 2)


def _read(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@dataclass
class TracedHub(QuotaHub):
    collector: Collector = field(default_factory=Collector)
    ssh_port: int = field(default_factory=free_port)

    def env(self) -> dict[str, str]:
        here = f"http://127.0.0.1:{self.collector.server_port}"
        return {**super().env(), "OTEL_EXPORTER_OTLP_ENDPOINT": here, "OTEL_BSP_SCHEDULE_DELAY": "100"}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[TracedHub]:
    made = TracedHub(tmp_path, own_templates={"tiny": {**TEMPLATE, **SSH}})
    receiving = threading.Thread(target=made.collector.serve_forever, daemon=True)
    receiving.start()
    with contextlib.closing(made.collector.socket), running(made):
        made.start_gateway(made.ssh_port)
        yield made
        made.stop("gateway")
    made.collector.shutdown()


async def log_in(hub: TracedHub, login: str, token: str) -> str:
    where: Any = {"host": "127.0.0.1", "port": hub.ssh_port, "known_hosts": None, "client_keys": None}
    async with asyncssh.connect(username=login, password=token, agent_path=None, **where) as connection:
        return str((await connection.run("echo entered")).stdout)


def test_without_a_collector_or_the_packages_there_are_no_traces() -> None:
    def use(before: str = "", **env: str) -> tuple[str, str]:
        command = [sys.executable, "-c", f"import sys{before}{USE}"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        return done.stdout.strip(), done.stderr

    there = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    assert use() == use(**there, OTEL_TRACES_EXPORTER="none") == ("None", "")
    assert "Install dlspawner[tracing]" in use("; sys.modules['opentelemetry'] = None", **there)[1]


def test_login_start_and_queued_job_are_traces_through_all_processes(hub: TracedHub) -> None:
    alice = Person(hub, "alice")
    assert asyncio.run(log_in(hub, "alice+tiny", alice.token)) == "entered\n"

    # A login that starts the job: one trace, from the gateway to the Manager, the Hub, and the Manager again.
    names = ("ssh login", "authenticate", "find the job", "connect to the job")
    login, proven, found, connected, asked, start, admitted = hub.collector.trace(
        *(f"ssh-gateway: {name}" for name in names), ASKED, START, ADMISSION
    )
    assert (login.parent, login.attributes["dlspawner.user"]) == ("", "alice")
    assert {proven.parent, found.parent, connected.parent} == {login.id}
    assert (asked.parent, start.parent, admitted.parent) == (found.id, asked.id, start.id)
    assert admitted.attributes["dlspawner.decision"] == "admit"
    assert (start.attributes["dlspawner.outcome"], start.attributes["dlspawner.template"]) == ("ok", "tiny")
    assert start.attributes["dlspawner.request"] == admitted.attributes["dlspawner.request"] != ""
    assert len({span.attributes["dlspawner.job"] for span in (admitted, start, connected)}) == 1
    assert start.events[0] == "pod: created"
    assert {"pod: scheduled", "pod: containers started", "pod: ready"} < set(start.events)

    # A start by REST continues its caller's trace. The job is queued, which is no error.
    hub.add_users(["bob"])
    url = f"http://{hub.address}:{hub.hub_port}/hub/api/users/bob/server"
    headers = {"Authorization": "token tests-token", "traceparent": f"00-{CALLERS}-00f067aa0ba902b7-01"}
    queued = requests.post(url, headers=headers, json={"user_options": {"gpus": GPUS}}, timeout=120)
    assert hub.refusal("bob", queued)
    first, decided = hub.collector.trace(START, ADMISSION, trace=CALLERS)
    assert (first.parent, first.failed, first.attributes["dlspawner.outcome"]) == (
        "00f067aa0ba902b7",
        False,
        "team-quota",
    )
    assert decided.attributes["dlspawner.decision"] == "wait"

    # Its later start is a trace of its own, of the same job.
    assert hub.api("DELETE", "/users/alice/servers/tiny").status_code in {202, 204}
    dispatched, start, admitted = hub.collector.trace("dlspawner-manager: start from the queue", START, ADMISSION)
    assert (dispatched.parent, start.parent, admitted.parent) == ("", dispatched.id, start.id)
    assert len({span.attributes["dlspawner.job"] for span in (first, dispatched, start)}) == 1
    assert dispatched.attributes["dlspawner.queued_seconds"] > 0
    hub.check_logs()
