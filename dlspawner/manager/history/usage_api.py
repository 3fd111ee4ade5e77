"""What a job used over time, for who may see it.

    GET  api/jobs/{id}/usage?since=&until=&step=    times and series, for programs
    GET  jobs/{id}/usage                            the same as a page, with lines and a table

Times are within the job's life: its last six hours unless they are given.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC

from markupsafe import Markup

from dlspawner.core.json_values import time
from dlspawner.manager.gathering import NO_PROMETHEUS
from dlspawner.manager.history.plots import axis_end, sparkline
from dlspawner.manager.history.usage import MetricSeries, TimeRange, read_time_range, read_usage
from dlspawner.manager.jobs_api import NOT_YET
from dlspawner.manager.kept import JobHistory
from dlspawner.manager.portal_page import PortalPage
from dlspawner.manager.prometheus import MetricsUnavailable
from dlspawner.manager.resource import JobApiHandler, leader_of
from dlspawner.manager.web import HttpProblem, IdentityHandler, Routes

TITLES = {
    "gpu": "GPUs, percent busy",
    "gpu_memory": "Memory of the GPUs, GiB",
    "cpu": "Processor, cores",
    "memory": "Memory, GiB",
}
NOTHING_YET = "It has not run yet."
_GIB = 2**30
_EVERY_SECONDS = 60  # between two looks of a page that is open
JOB = r"(j-[a-z2-7]{12})"


@dataclass(frozen=True, slots=True)
class UsageLine:
    """One series as the page shows it."""

    title: str
    svg: Markup
    last: str
    most: str
    values: tuple[str, ...]


async def read_job_usage(
    handler: IdentityHandler, kept: JobHistory, since: str = "", until: str = "", step: str = ""
) -> tuple[TimeRange, tuple[MetricSeries, ...]]:
    """What is known; 422 for what cannot be asked, 501 and 503 where nobody can tell."""
    acting = leader_of(handler.manager)
    if acting.culler is None:
        raise HttpProblem(503, NOT_YET)
    if acting.prometheus is None:
        raise HttpProblem(501, NO_PROMETHEUS)
    now = handler.manager.now()
    span = read_time_range(since, until, step, kept.started or now, kept.ended or now)
    if isinstance(span, str):
        raise HttpProblem(422, span)
    namespaces = acting.culler.evidence.namespaces
    record = await acting.ledger.find(kept.id)
    pods = record.seen if record is not None else ()
    namespace = namespaces.from_key(pods[0].namespace) if pods else namespaces.ordinary
    try:
        return span, await read_usage(acting.prometheus, namespace, [pod.name for pod in pods], span)
    except MetricsUnavailable as problem:
        raise HttpProblem(503, str(problem)) from problem


class JobUsageHandler(JobApiHandler):
    """As JSON."""

    async def get(self, job: str) -> None:
        kept = await self.seen(job, self.sees())
        since, until, step = (self.get_query_argument(name, "") for name in ("since", "until", "step"))
        span, found = await read_job_usage(self, kept, since, until, step)
        self.reply(
            {
                "job": job,
                "since": time(span.since),
                "until": time(span.until),
                "step_seconds": span.step.total_seconds(),
                "times": [time(at) for at in span.times],
                "series": [{"name": one.name, "unit": one.unit, "values": list(one.values)} for one in found],
            }
        )


class UsagePage(PortalPage):
    """As a page."""

    async def get(self, job: str) -> None:
        self.person()
        kept = await self.kept(job)
        problem, span = "", None
        found: tuple[MetricSeries, ...] = ()
        try:
            span, found = await read_job_usage(self, kept)
        except HttpProblem as no:
            problem = no.detail
        known = [one for one in found if any(value is not None for value in one.values)]
        self.show(
            "usage.html",
            job=kept,
            mine=self.identity is not None and kept.user == self.identity.name,
            trouble=problem,
            times=moments(span) if span else [],
            shown=time_range_text(span) if span and known else "",
            lines=[_line(one) for one in known],
            nothing=NOTHING_YET if kept.started is None else "Nothing was measured in this time.",
            now=self.manager.now(),
            every=_EVERY_SECONDS,
            told=(),
        )


def moments(span: TimeRange) -> list[str]:
    """The times of its points in UTC, each a text of its own: with seconds where a minute has several."""
    form = "%Y-%m-%d %H:%M" if span.step.total_seconds() % 60 == 0 else "%Y-%m-%d %H:%M:%S"
    return [at.astimezone(UTC).strftime(form) for at in span.times]


def time_range_text(span: TimeRange) -> str:
    """Which part of a job's life is shown."""
    begin, end = (f"{at.astimezone(UTC):%Y-%m-%d %H:%M}" for at in (span.since, span.until))
    return f"From {begin} to {end} UTC, a mean for every {span.step.total_seconds():g} seconds."


def _line(series: MetricSeries) -> UsageLine:
    factor = _GIB if series.unit == "bytes" else 1
    values = [None if value is None else value / factor for value in series.values]
    known = [value for value in values if value is not None]
    end = 100.0 if series.unit == "percent" else axis_end(max(known))
    title = TITLES[series.name]
    return UsageLine(
        title,
        sparkline(values, title, end, f"usage-{series.name}"),
        f"{known[-1]:.1f}",
        f"{max(known):.1f}",
        tuple("" if value is None else f"{value:.1f}" for value in values),
    )


USAGE_ROUTES: Routes = ((f"api/jobs/{JOB}/usage", JobUsageHandler), (f"jobs/{JOB}/usage", UsagePage))
USAGE_TEMPLATES = ("usage.html",)
