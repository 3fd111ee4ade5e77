"""OpenTelemetry traces, optional: what a start or a login does in Hub, Manager and gateway, as the spans of one trace.

* OpenTelemetry's own environment variables switch it on (``OTEL_EXPORTER_OTLP_ENDPOINT``) and say everything else.
  Without one, nothing of OpenTelemetry is imported, and every function here returns at once.
* The header ``traceparent`` (W3C) goes from the gateway to the Manager, from there to the Hub, and from the Hub's start
  back to the Manager. A caller's own trace is continued, as a request id is (`request_log`).
* The Manager has spans only of requests that belong to a trace and change something, not of pages and polls.
* A span has the request id and its outcome: *ok*, the reason of a refusal, or the name of an error. No message of an
  error is in it, because Kubernetes' messages may contain secrets.

Refused: OpenTelemetry's instrumentation packages of tornado, aiohttp and SQLAlchemy. They make spans of every page,
probe and statement, and none of what is decided.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from dlspawner.request_log import request_id

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import Span
    from opentelemetry.trace import Tracer

Attributes = Mapping[str, str | int | float]

_HEADER = "traceparent"
_REASON = re.compile("[a-z][a-z-]*")  # of a refusal; other exceptions have messages there
_tracer: Tracer | None = None


@cache
def start(service: str) -> None:
    """Begins the traces of this process if its environment names a collector; ``service`` is its name by default."""
    endpoints = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    if not any(map(os.environ.get, endpoints)) or os.environ.get("OTEL_TRACES_EXPORTER") == "none":
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as missing:
        logging.getLogger("dlspawner").warning("no traces: %s. Install dlspawner[tracing].", missing)
        return
    about = Resource.create()
    if str(about.attributes[SERVICE_NAME]).startswith("unknown_service"):
        about = about.merge(Resource({SERVICE_NAME: service}))
    try:
        provider = TracerProvider(resource=about)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except ValueError as wrong:
        logging.getLogger("dlspawner").warning("no traces: a variable OTEL_* is wrong: %s", wrong)
        return
    global _tracer  # noqa: PLW0603 - a process has one
    _tracer = provider.get_tracer("dlspawner")


@contextmanager
def span(name: str, attributes: Attributes, headers: Mapping[str, str] | None = None) -> Iterator[None]:
    """A span around the block, below the current one; with ``headers``, below the one that these name."""
    if _tracer is None:
        yield
        return
    from opentelemetry.trace import StatusCode, use_span

    made = _tracer.start_span(name, _parent(headers), attributes={"dlspawner.outcome": "ok", **attributes})
    with use_span(made, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield
        except BaseException as problem:
            reason = str(getattr(problem, "reason", ""))
            known = reason if _REASON.fullmatch(reason) else type(problem).__name__
            made.set_attribute("dlspawner.outcome", known)
            if not getattr(problem, "waits", False):  # a place in the queue is no error
                made.set_status(StatusCode.ERROR)
            raise
        finally:
            if request := request_id.get():
                made.set_attribute("dlspawner.request", request)


def begin_request(name: str, headers: Mapping[str, str]) -> None:
    """Begins the span of a request that belongs to a trace; it is the current one of this task."""
    if _tracer is None or _HEADER not in headers:
        return
    from opentelemetry.context import attach
    from opentelemetry.trace import SpanKind, get_current_span, set_span_in_context

    parent = _parent(headers)
    if get_current_span(parent).get_span_context().is_valid:
        attributes = {"dlspawner.request": request_id.get()}
        attach(set_span_in_context(_tracer.start_span(name, parent, SpanKind.SERVER, attributes)))


def end_request(status: int) -> None:
    """Ends the span of the request, if it has one."""
    if current := _recording():
        current.set_attribute("http.response.status_code", status)
        current.end()


def add(attributes: Attributes) -> None:
    """Adds attributes to the current span."""
    if current := _recording():
        current.set_attributes(attributes)


def event(name: str) -> None:
    """Adds an event to the current span, once: an event of the same name is not added again."""
    if (current := _recording()) and all(earlier.name != name for earlier in current.events):
        current.add_event(name)


def pod_seen(pod: Mapping[str, Any]) -> None:
    """Adds the phases that a starting pod has reached to the current span."""
    if _recording() is None:
        return
    status = pod.get("status") or {}
    containers = status.get("containerStatuses") or ()
    reached = {one["type"] for one in status.get("conditions") or () if one.get("status") == "True"}
    phases = {
        "pod: scheduled": "PodScheduled" in reached,
        "pod: images pulled": any(one.get("imageID") for one in containers),
        "pod: containers started": any((one.get("state") or {}).get("running") for one in containers),
        "pod: ready": "Ready" in reached,
    }
    for name, is_reached in phases.items():
        if is_reached:
            event(name)


def inject(headers: MutableMapping[str, str]) -> None:
    """Adds the current span to the headers of a request to another process of the product."""
    if _tracer is None:
        return
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    # A task that a start has begun may outlive it: what it asks later belongs to no trace.
    if getattr(get_current_span(), "end_time", None) is None:
        TraceContextTextMapPropagator().inject(headers)


def _parent(headers: Mapping[str, str] | None) -> Any:
    """The context that the headers name; ``None``: the current one."""
    if headers is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract(headers)


def _recording() -> Span | None:
    """The current span, unless there is none, it has ended, or it was not sampled."""
    if _tracer is None:
        return None
    from opentelemetry.sdk.trace import Span
    from opentelemetry.trace import get_current_span

    current = get_current_span()
    return current if isinstance(current, Span) and current.is_recording() else None
