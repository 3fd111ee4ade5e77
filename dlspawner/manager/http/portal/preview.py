"""The result of submitting a job, for the form while its fields are filled in: starts, waits, needs approval, refused.

    POST  preview    the result of `options` (JSON) for a `server` of the user of `ticket`

Checks and decision are those of a submission, on pods as the template makes them; nothing is written or reserved. Hooks
of the Hub may change pods, so the submission decides. The form is a page of the Hub, where logins of this service do
not count: the Hub signs a ticket. Refused: the rules in the form's JavaScript.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from dlspawner.core import link, naming, units
from dlspawner.core.config import Team
from dlspawner.core.job import Job
from dlspawner.core.launch import options, pod_set, rendering
from dlspawner.core.launch.options import InvalidOptions, SelectedOptions
from dlspawner.core.template import Template
from dlspawner.core.units import Manifest
from dlspawner.manager.admission.service import AdmissionRequest, AdmissionResponse
from dlspawner.manager.http.api.start_jobs import RUNS
from dlspawner.manager.http.handlers import STALE_PAGE, HttpProblem, ManagerHandler
from dlspawner.manager.http.portal.base import PortalPage
from dlspawner.manager.model.job_history import NO_NAME, is_server_name, request_text
from dlspawner.settings import Settings


class PreviewPage(PortalPage):
    async def prepare(self) -> None:
        ManagerHandler.prepare(self)
        self.current_user = None

    async def post(self) -> None:
        ticket, admission = self.get_body_argument("ticket", ""), self.admission()
        known = link.read_preview(self.manager.service.api_token, ticket, admission.store.now().timestamp())
        if known is None:
            raise HttpProblem(403, STALE_PAGE)
        user, names = known
        try:
            given = json.loads(self.get_body_argument("options", "{}"))
        except ValueError:
            given = None
        if not isinstance(given, dict):
            raise HttpProblem(422, "Options are a JSON object.")
        teams = admission.store.cluster_state.teams.team_of(user, names)
        teams = tuple(sorted(teams, key=lambda team: names.index(team.name) if team.name in names else 0))
        server = self.get_body_argument("server", "")
        asked = admission_request(self.leader().settings, teams, user, server, given)
        job: Job | None = None
        there = any(one.holds for one in admission.store.on(user, server))
        if not is_server_name(server) or there:
            answer = AdmissionResponse("refuse", "name", (RUNS if there else NO_NAME,))
        elif isinstance(asked, InvalidOptions):
            answer = AdmissionResponse("refuse", "options", asked.sentences)
        else:
            job, answer = admission.preview(asked)
        decision = "approval" if answer.reason == "approval" else answer.decision
        estimator = self.leader().estimator
        estimate = await estimator.preview(job) if job and estimator and decision == "wait" else None
        self.show(
            "preview.html",
            decision=decision,
            request=_request(job, admission.store.cluster_state.teams.titles) if job else "",
            sentences=answer.sentences,
            estimate=estimate,
            now=admission.store.now(),
        )


def _request(job: Job, titles: Mapping[str, str]) -> str:
    pods = job.request.pods
    cpu, memory = sum(pod.cpu_milli for pod in pods), sum(pod.memory_bytes for pod in pods)
    several = f"{len(pods)} pods" if len(pods) > 1 else ""
    amount = f"{cpu / 1000:g} CPU, {units.size(memory)} memory"
    size = "" if job.request.gpus else "No GPU"
    return ", ".join(filter(None, (size, request_text(job, titles.get(job.team, job.team)), amount, several)))


def admission_request(
    settings: Settings, teams: Sequence[Team], user: str, server: str, given: Mapping[str, object]
) -> AdmissionRequest | InvalidOptions:
    """Returns the admission request of a job with these options, or the sentences that refuse the options."""
    template = options.find_template(settings.templates, given, teams, settings.cluster.default_template)
    if isinstance(template, InvalidOptions):
        return template
    chosen = options.select_options(template, settings.cluster, given, teams)
    if isinstance(chosen, InvalidOptions):
        return chosen
    pods = _pods(template, chosen, user, server)
    if isinstance(pods, InvalidOptions):
        return pods
    return AdmissionRequest(
        job="preview",
        user=user,
        server=server,
        team=chosen.team,
        template=template.name,
        preemptible=chosen.preemptible,
        priority=chosen.priority,
        requeue=chosen.requeue,
        request_seconds=0,
        namespace="",
        pods=pods,
        special=tuple(sorted(template.special, key=lambda one: one.value)),
        image=str(chosen.get("image") or ""),
    )


def _pods(template: Template, chosen: SelectedOptions, user: str, server: str) -> tuple[Manifest, ...] | InvalidOptions:
    """Returns the pods' manifests, with the names and addresses of a launch imagined."""
    facts = rendering.RenderContext(
        *(user, server, naming.unix_name(user), "", "job", "image", "host", 22, ""), home_claim="home"
    )
    made = rendering.render(template, chosen, facts)
    if isinstance(made, InvalidOptions):
        return made
    first: Manifest = {
        "metadata": {"name": "job", "labels": {}, "annotations": {}, **made.fragment["metadata"]},
        "spec": made.fragment["spec"],
    }
    if made.roles:
        first = pod_set.as_first(first, pod_set.PodSet(made.roles, template.on_pod_failure), "job", "")
    return tuple(pod_set.at_start(first))
