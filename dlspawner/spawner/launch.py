"""From what a person asks for to the job that is launched. Pure: settings and wishes in, values or sentences out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dlspawner.core import naming, unix_account
from dlspawner.core.config import PriorityClasses, Team
from dlspawner.core.launch import options, rendering, security
from dlspawner.core.launch import pod as launch_pod
from dlspawner.core.launch.options import InvalidOptions, SelectedOptions
from dlspawner.core.launch.pod import merge_pod
from dlspawner.core.template import MAIN_CONTAINER, NOTEBOOK_CONTAINER, Template
from dlspawner.core.units import Manifest
from dlspawner.settings import Settings
from dlspawner.spawner import children
from dlspawner.spawner.refusal import StartRefused

# Where the keys of a job's Secret appear below /etc/dlspawner.
BLOCKED = "You may not start jobs here. Ask an administrator."
_FILES = (
    *((name, name) for name in (children.HOST_KEY, "user_ca.pub", "principals", "sshd_config", "start", "profile.sh")),
    *((name, name) for name in ("suggest_keys.py", "tell_kernels.py", "door.py", "passwd", "group")),
    ("index.html", "page/index.html"),
)

_NO_CLASSES = PriorityClasses()


@dataclass(frozen=True, slots=True)
class Owner:
    """Who asks: the Hub's name, the teams (the one that pays by default first)."""

    name: str
    teams: tuple[Team, ...]

    @property
    def groups(self) -> tuple[unix_account.UnixGroup, ...]:
        """The unix groups of all their teams, so that every job of theirs is in the same ones."""
        return tuple(unix_account.UnixGroup(team.name, team.gid) for team in self.teams if team.gid is not None)


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """User options that have been checked, with the template that they are for."""

    template: Template
    choices: SelectedOptions

    def kept(self, given: Mapping[str, object]) -> dict[str, object]:
        """What the Hub stores: what the person decided. Defaults stay open, they belong to the next launch's GPUs."""
        decided = self.choices.user_options()
        named = {name for name, value in given.items() if value is not None and value != ""}
        return {name: value for name, value in decided.items() if name == options.TEMPLATE_KEY or name in named}


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """One launch of one job: everything that its objects are made of."""

    job: naming.PodIdentity
    wish: LaunchRequest
    facts: rendering.RenderContext
    host_key: children.HostKey | None
    numbers: unix_account.UnixIds | None  # None: what KubeSpawner is configured with
    groups: tuple[unix_account.UnixGroup, ...]  # the teams'
    home_modes: tuple[str, ...]  # access modes of the claim with the home directory
    strict_groups: bool = False  # no group that only an image knows
    priority_class: str | None = None


def unnested(given: object) -> Mapping[str, object]:
    """User options as plain names and values. JupyterHub 5.5 stores the body ``{"user_options": {…}}`` as it came."""
    if isinstance(given, Mapping) and set(given) == {"user_options"}:
        given = given["user_options"]
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise StartRefused("User options must be an object of names and values.", reason="options")
    return given


def check_options(settings: Settings, person: Owner, given: object, notebook_port: int | None = None) -> LaunchRequest:
    """The checked user options, or Refused with every sentence about them; the port is where jobs answer the Hub."""
    wishes = unnested(given)
    if person.name in settings.teams.blocked:
        raise StartRefused(BLOCKED, reason="blocked", status=403)
    template = options.find_template(settings.templates, wishes, person.teams, settings.cluster.default_template)
    if isinstance(template, InvalidOptions):
        raise StartRefused(*template.sentences, reason="template")
    choices = options.select_options(template, settings.cluster, wishes, person.teams, notebook_port)
    if isinstance(choices, InvalidOptions):
        raise StartRefused(*choices.sentences, reason="options")
    return LaunchRequest(template, choices)


def team_of(teams: Sequence[Team], name: str) -> Team:
    return next((team for team in teams if team.name == name), Team(name))


def make_plan(  # noqa: PLR0913 - these are the facts of a launch, each from another place
    wish: LaunchRequest,
    person: Owner,
    server: str,
    *,
    identifier: str,
    nonce: str,
    pod_name: str,
    home_claim: str | None,
    image: str | None,
    ssh: tuple[str, int] | None,
    numbers: unix_account.UnixIds | None = None,
    ssh_image: str = "",
    home_modes: Sequence[str] = (launch_pod.MANY_NODES,),
    strict_groups: bool = False,
    classes: PriorityClasses = _NO_CLASSES,
) -> LaunchPlan:
    """The launch of these wishes on a named server of a person."""
    account, choices = naming.unix_name(person.name), wish.choices
    # Without a command the job shows a page of ours, which comes with the same files as sshd.
    needs_files = wish.template.ssh is not None or not wish.template.command
    host_key = children.make_host_key() if needs_files else None
    facts = rendering.RenderContext(
        user=person.name,
        server=server,
        unix_name=account,
        job=identifier,
        pod_name=pod_name,
        default_image=image,
        ssh_host=ssh[0] if ssh else None,
        ssh_port=ssh[1] if ssh else None,
        home_claim=home_claim,
        team_mounts=team_of(person.teams, choices.team).mounts,
        files_secret=naming.ssh_object(pod_name) if host_key else None,
        files=_FILES if host_key else (),
        ssh_image=ssh_image or None,
    )
    job = naming.PodIdentity(
        id=identifier,
        user=person.name,
        server=server,
        team=choices.team,
        template=wish.template.name,
        gpus=choices.gpus,
        ssh_host_key=host_key.public if host_key and wish.template.ssh else None,
        ssh_login=account if wish.template.ssh else None,
        log_dir=rendering.log_dir(choices, facts, rendering.home_directory(wish.template, facts)),
        preemptible=choices.preemptible,
        priority=choices.priority,
        requeue=choices.requeue,
        nonce=nonce,
    )
    kubernetes = classes.of(preemptible=choices.preemptible)
    return LaunchPlan(job, wish, facts, host_key, numbers, person.groups, tuple(home_modes), strict_groups, kubernetes)


def log_dir(wish: LaunchRequest, person: Owner) -> str | None:
    """Where any launch of these wishes logs to."""
    facts = rendering.RenderContext(person.name, "", naming.unix_name(person.name), "", "")
    return rendering.log_dir(wish.choices, facts, rendering.home_directory(wish.template, facts))


def pod_fragment(launch: LaunchPlan) -> Manifest:
    """The part of the pod that the template decides, with the job's names on it."""
    rendered = rendering.render(launch.wish.template, launch.wish.choices, launch.facts)
    if isinstance(rendered, InvalidOptions):
        raise StartRefused(*rendered.sentences, reason="options")
    metadata = rendered.get("metadata", {})
    # Ours come last: a template cannot name its job another one's.
    labels = {**metadata.get("labels", {}), **naming.job_labels(launch.job)}
    annotations = {**metadata.get("annotations", {}), **naming.job_annotations(launch.job), **_group_names(launch)}
    return {"metadata": {**metadata, "labels": labels, "annotations": annotations}, "spec": rendered["spec"]}


def _group_names(launch: LaunchPlan) -> dict[str, str]:
    groups = (*(launch.numbers.groups if launch.numbers else ()), *launch.groups)
    return {naming.GROUPS_ANNOTATION: unix_account.write_groups(groups)} if groups else {}


def build_pod(plain: Manifest, launch: LaunchPlan) -> Manifest:
    """The pod of this launch, made of KubeSpawner's: the person, their template, and Pod Security *restricted*."""
    spec = plain["spec"]
    notebook = next(one for one in spec["containers"] if one["name"] == NOTEBOOK_CONTAINER)
    configured = security.unix_ids(spec, notebook)
    who = launch.numbers or configured
    if who is not None:
        # Whose numbers KubeSpawner knows, its fs_gid is meant for them as well.
        fs_group = None if launch.numbers else (spec.get("securityContext") or {}).get("fsGroup")
        plain = security.run_as(plain, who.joining(launch.groups), fs_group=fs_group)
    merged = as_one_person(merge_pod(plain, pod_fragment(launch)))
    whole = _with_names(
        _with_class(security.restricted(merged, strict_groups=launch.strict_groups), launch.priority_class)
    )
    claim = launch.facts.home_claim
    return launch_pod.with_home_affinity(whole, claim, launch.home_modes) if claim else whole


def _with_class(pod: Manifest, name: str | None) -> Manifest:
    """The pod with the PriorityClass of its kind, unless KubeSpawner or the template has given it another."""
    if name is None or pod["spec"].get("priorityClassName"):
        return pod
    return {**pod, "spec": {**pod["spec"], "priorityClassName": name}}


def _with_names(pod: Manifest) -> Manifest:
    """The pod with the cluster's DNS: without a word about it, a pod in its node's network has the node's own."""
    spec = pod["spec"]
    if not spec.get("hostNetwork") or spec.get("dnsPolicy"):
        return pod
    return {**pod, "spec": {**spec, "dnsPolicy": "ClusterFirstWithHostNet"}}


def as_one_person(pod: Manifest) -> Manifest:
    """Let the person's own container run as the same account as ``notebook``, unless its template says another one."""
    containers = pod["spec"]["containers"]
    context = next((one.get("securityContext") for one in containers if one["name"] == NOTEBOOK_CONTAINER), None)
    if not context:
        return pod
    containers = [
        {**one, "securityContext": {**context, **(one.get("securityContext") or {})}}
        if one["name"] == MAIN_CONTAINER
        else one
        for one in containers
    ]
    return {**pod, "spec": {**pod["spec"], "containers": containers}}
