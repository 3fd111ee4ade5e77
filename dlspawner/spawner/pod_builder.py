"""From a user's request to the plan and the pod of a job: settings and options in, values or sentences out.

**uid, gid and groups of a user's jobs.** A number from another source than before would take away the user's files, or
give access to those of another user. So the source that is set up decides, and if it cannot, the start is refused:

1. With ``account_keys`` the authenticator's ``auth_state`` decides for all users.
2. Else the Manager, if it is set up, but for users whose ``auth_state`` has a uid under the usual name: their source is
   the authenticator's present answer, so an operator with such an authenticator sets ``account_keys``.
3. Else KubeSpawner's own ``uid`` and ``gid``, with the same exception.

The Manager is asked at each start and its answers are not kept: after a loss of its database a Hub with a cache would
continue to use numbers that the Manager gives to other users.

**Jobs with special permissions.** The namespace of ordinary jobs enforces Pod Security *restricted*. A job whose
template asks for special permissions is made in a second namespace, which does not, so this module checks the final
manifest there, including everything that the template, a profile, KubeSpawner's configuration or a hook has added: it
uses only permissions that its template asks for and cluster.yaml switches on, or it is refused. With a second namespace
that holds for every job; without one nothing changes, and Kubernetes alone judges.

A server's pod, Secret, Services and claims are all in one namespace, which is KubeSpawner's ``namespace`` and part of
the server's state. A claim is of its namespace: the home directory of a job with special permissions is another one
than that of the person's ordinary jobs. A claim of the same name that an administrator makes in the second namespace,
on a volume with the same data, is used as it is.

Refused: one namespace with exemptions by service account or runtime class. An account that can create pods there could
take the exemption as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlspawner import request_log, tracing
from dlspawner.core import naming, unix_account
from dlspawner.core.config import ClusterConfig, PriorityClasses, Team, format_permissions
from dlspawner.core.gpus import without_claims_of
from dlspawner.core.launch import options, pod_set, rendering, security
from dlspawner.core.launch import pod as launch_pod
from dlspawner.core.launch.options import InvalidOptions, SelectedOptions
from dlspawner.core.launch.pod import merge_pod
from dlspawner.core.launch.security import PermissionUse, disallowed
from dlspawner.core.template import MAIN_CONTAINER, NOTEBOOK_CONTAINER, Template
from dlspawner.core.units import Manifest
from dlspawner.core.unix_account import AuthStateKeys, InvalidIds, UidRange, UnixIds, read_email, read_unix_ids
from dlspawner.settings import Settings
from dlspawner.spawner import owned_objects
from dlspawner.spawner.kube.errors import StartRefused

BLOCKED = "You may not start jobs here. Ask an administrator."
# Where the keys of a job's Secret appear below /etc/dlspawner.
_FILES = (
    *(
        (name, name)
        for name in (owned_objects.HOST_KEY, "user_ca.pub", "principals", "sshd_config", "start", "profile.sh", "shell")
    ),
    *((name, name) for name in ("report_ssh_keys.py", "report_kernels.py", "watch_ports.py", "passwd", "group")),
    ("index.html", "page/index.html"),
)
_SEVERAL_FILES = tuple((name, name) for name in pod_set.SECRET_FILES)

_OF_SSH = frozenset({owned_objects.HOST_KEY, "user_ca.pub", "principals", "sshd_config"})  # of these files

_PROFILE = re.compile(r"profile|profile-option-.*", re.DOTALL)  # what KubeSpawner's own form has left with a server
_NO_CLASSES = PriorityClasses()


@dataclass(frozen=True, slots=True)
class Owner:
    """The user of a request: the Hub's name, the teams (the one that pays by default first), and the account's name."""

    name: str
    teams: tuple[Team, ...]
    account: str

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
        """Returns the options that the Hub stores: the user's decisions. Defaults stay open for the next launch."""
        decided = self.choices.user_options()
        named = {name for name, value in given.items() if value is not None and value != ""}
        return {name: value for name, value in decided.items() if name == options.TEMPLATE_KEY or name in named}


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """One launch of one job: all that its objects are made of; ``fragment`` is its template's part of the pod."""

    job: naming.PodIdentity
    request: LaunchRequest
    context: rendering.RenderContext
    fragment: Manifest
    host_key: owned_objects.HostKey | None
    numbers: unix_account.UnixIds | None  # None: what KubeSpawner is configured with
    groups: tuple[unix_account.UnixGroup, ...]  # the teams'
    home_modes: tuple[str, ...]  # access modes of the claim with the home directory
    pods: pod_set.PodSet | None = None  # of a job of several
    strict_groups: bool = False  # no group that only an image knows
    priority_class: str | None = None
    ephemeral_storage: tuple[str, str] = ("", "")  # limit and request; "": none


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
    chosen = unnested(given)
    if person.name in settings.teams.blocked:
        raise StartRefused(BLOCKED, reason="blocked", status=403)
    template = options.find_template(settings.templates, chosen, person.teams, settings.cluster.default_template)
    if isinstance(template, InvalidOptions):
        raise StartRefused(*template.sentences, reason="template")
    chosen = {name: one for name, one in chosen.items() if template.option(name) or not _PROFILE.fullmatch(str(name))}
    choices = options.select_options(template, settings.cluster, chosen, person.teams, notebook_port)
    if isinstance(choices, InvalidOptions):
        raise StartRefused(*choices.sentences, reason="options")
    return LaunchRequest(template, choices)


def team_of(teams: Sequence[Team], name: str) -> Team:
    return next((team for team in teams if team.name == name), Team(name))


def make_plan(  # noqa: PLR0913 - the context of a launch, each from another source
    request: LaunchRequest,
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
    has_gateway: bool = True,
    ephemeral_storage: tuple[str, str] = ("", ""),
) -> LaunchPlan:
    """Returns the launch of these options on a named server of a user; StartRefused if the template cannot be rendered.

    The template is rendered here and nowhere else, before anything is created. Without a gateway there is no sshd.
    """
    account, choices = naming.unix_name(person.account), request.choices
    # Without a command the job shows a page of ours, which comes with the same files as sshd.
    needs_files = request.template.ssh is not None or not request.template.command
    host_key = owned_objects.make_host_key() if needs_files else None
    has_ssh = has_gateway and request.template.ssh is not None
    every_file = (*_FILES, *(_SEVERAL_FILES if choices.roles else ()))
    context = rendering.RenderContext(
        user=person.name,
        server=server,
        unix_name=account,
        job=identifier,
        pod_name=pod_name,
        default_image=image,
        ssh_host=ssh[0] if ssh else None,
        ssh_port=ssh[1] if ssh else None,
        login_proxy=owned_objects.packaged("login_proxy.py"),
        home_claim=home_claim,
        team_mounts=team_of(person.teams, choices.team).mounts,
        files_secret=naming.ssh_object(pod_name) if host_key else None,
        files=tuple(one for one in every_file if has_gateway or one[0] not in _OF_SSH) if host_key else (),
        ssh_image=ssh_image or None,
    )
    job = naming.PodIdentity(
        id=identifier,
        user=person.name,
        server=server,
        team=choices.team,
        template=request.template.name,
        gpus=choices.gpus,
        ssh_host_key=host_key.public if host_key and has_ssh else None,
        ssh_login=account if request.template.ssh else None,
        log_dir=rendering.log_dir(choices, context, rendering.home_directory(request.template, context)),
        preemptible=choices.preemptible,
        priority=choices.priority,
        requeue=choices.requeue,
        nonce=nonce,
    )
    rendered = rendering.render(request.template, choices, context)
    if isinstance(rendered, InvalidOptions):
        raise StartRefused(*rendered.sentences, reason="options")
    return LaunchPlan(
        job=job,
        request=request,
        context=context,
        fragment=rendered.fragment,
        host_key=host_key,
        numbers=numbers,
        groups=person.groups,
        home_modes=tuple(home_modes),
        strict_groups=strict_groups,
        priority_class=classes.of(preemptible=choices.preemptible),
        pods=pod_set.PodSet(rendered.roles, request.template.on_pod_failure) if rendered.roles else None,
        ephemeral_storage=ephemeral_storage,
    )


def _pod_fragment(launch: LaunchPlan) -> Manifest:
    """Returns the template's part of the pod, with the job's labels and annotations."""
    metadata = launch.fragment.get("metadata", {})
    # Ours come last: a template cannot name its job another one's.
    labels = {**metadata.get("labels", {}), **naming.job_labels(launch.job)}
    annotations = {**metadata.get("annotations", {}), **naming.job_annotations(launch.job), **_group_names(launch)}
    if request := request_log.request_id.get():
        annotations[request_log.ANNOTATION] = request
    return {"metadata": {**metadata, "labels": labels, "annotations": annotations}, "spec": launch.fragment["spec"]}


def _group_names(launch: LaunchPlan) -> dict[str, str]:
    groups = (*(launch.numbers.groups if launch.numbers else ()), *launch.groups)
    return {naming.GROUPS_ANNOTATION: unix_account.write_groups(groups)} if groups else {}


def build_pod(plain: Manifest, launch: LaunchPlan, domain: str) -> Manifest:
    """The pod of this launch, made of KubeSpawner's: the person, their template, and Pod Security *restricted*.

    ``domain`` is the DNS name of its namespace's Services.
    """
    tracing.add({"dlspawner.job": launch.job.id, "dlspawner.template": launch.job.template})
    spec = plain["spec"]
    notebook = next(one for one in spec["containers"] if one["name"] == NOTEBOOK_CONTAINER)
    configured = security.unix_ids(spec, notebook)
    who = launch.numbers or configured
    if who is not None:
        # KubeSpawner's fs_gid is meant for users with KubeSpawner's numbers as well.
        fs_group = None if launch.numbers else (spec.get("securityContext") or {}).get("fsGroup")
        plain = security.run_as(plain, who.joining(launch.groups), fs_group=fs_group)
    merged = as_one_person(merge_pod(plain, _pod_fragment(launch)))
    # Or the job would see the Services of all others; said here, because extra_pod_config is replaced as a whole.
    merged["spec"].setdefault("enableServiceLinks", False)
    merged = _with_ephemeral_storage(merged, launch.request.template.work_container, launch.ephemeral_storage)
    whole = _with_names(
        _with_class(security.restricted(merged, strict_groups=launch.strict_groups), launch.priority_class)
    )
    if launch.pods is not None:
        whole = pod_set.as_first(whole, launch.pods, naming.pods_object(launch.context.pod_name), domain)
    claim = launch.context.home_claim
    return launch_pod.with_home_affinity(whole, claim, launch.home_modes) if claim else whole


def _with_class(pod: Manifest, name: str | None) -> Manifest:
    """The pod with the PriorityClass of its kind, unless KubeSpawner or the template has given it another."""
    if name is None or pod["spec"].get("priorityClassName"):
        return pod
    return {**pod, "spec": {**pod["spec"], "priorityClassName": name}}


def _with_ephemeral_storage(pod: Manifest, name: str, amounts: tuple[str, str]) -> Manifest:
    """The pod with this limit and request of ephemeral storage, unless KubeSpawner or the template name any."""
    work = next(one for one in pod["spec"]["containers"] if one["name"] == name)
    resources = work.get("resources") or {}
    if any("ephemeral-storage" in (resources.get(kind) or {}) for kind in ("limits", "requests")):
        return pod
    both = zip(("limits", "requests"), amounts, strict=True)
    added = {kind: {"ephemeral-storage": amount} for kind, amount in both if amount}
    return merge_pod(pod, {"spec": {"containers": [{"name": name, "resources": added}]}})


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


UNUSABLE = "Your login has no usable account number for jobs. Ask an administrator."
UNTOLD = (
    "Your login has not told the Hub your account number for jobs: log out and in again, or ask an administrator if "
    "that changes nothing."
)


async def from_authenticator(spawner: Any, uids: UidRange) -> UnixIds | None:
    """The numbers that the authenticator tells; ``None`` when it is not the source; Refused when they cannot be."""
    state = await spawner.user.get_auth_state()
    if state is None:
        if spawner.user.encrypted_auth_state is not None:
            raise _unusable(spawner, "auth_state cannot be decrypted")
        _refuse_untold(spawner, "there is no auth_state")
        return None
    found = read_unix_ids(state, AuthStateKeys(**spawner.account_keys), spawner.least_uid)
    if isinstance(found, InvalidIds):
        raise _unusable(spawner, found.why)
    if found is None:
        _refuse_untold(spawner, "auth_state has no uid")
        return None
    given = sorted(
        number for number in {found.uid, found.gid, *(group.gid for group in found.groups)} if number in uids
    )
    if given and spawner.manager_token:
        raise _unusable(spawner, f"auth_state has {given}, in the range that the Manager gives from")
    return found


async def mail_address(spawner: Any) -> str:
    """The person's e-mail address in ``auth_state``; empty when that has none."""
    state = await spawner.user.get_auth_state() if spawner.email_key else None
    return read_email(state or {}, spawner.email_key)


def _refuse_untold(spawner: Any, why: str) -> None:
    """Refuses the start if the authenticator, as the configured source, has no uid: no other source takes its place."""
    if spawner.account_keys:
        raise _unusable(spawner, why, UNTOLD)


def _unusable(spawner: Any, why: str, sentence: str = UNUSABLE) -> StartRefused:
    spawner.log.warning("account user=%s uid=none: %s", spawner.user.name, why)
    return StartRefused(sentence, reason="account", status=403)


STATE_SPECIAL = "dlspawner_special"
_SHOWN = 3  # uses that a sentence names
NOWHERE = "This template needs special permissions (%s), and this Hub has no place for such jobs. Ask an administrator."
NO_APPROVAL = (
    "This template needs special permissions (%s), which cannot be approved without a Manager. Ask an administrator."
)


def check_place(spawner: Any, template: Template, *, has_manager: bool) -> None:
    """Refuses a job of this template without a namespace for it, or without a Manager to approve it."""
    if not template.special:
        return
    words = format_permissions(template.special)
    if not spawner.special_namespace or spawner.enable_user_namespaces:
        spawner.log.error("template=%s needs %s: DLSpawner.special_namespace is not set", template.name, words)
        raise StartRefused(NOWHERE % words, reason="special-namespace", status=403)
    if not has_manager:
        spawner.log.error("template=%s needs %s: there is no Manager to approve it", template.name, words)
        raise StartRefused(NO_APPROVAL % words, reason="special-approval", status=403)


def check_permissions(spawner: Any, manifest: dict[str, Any], template: Template, cluster: ClusterConfig) -> None:
    """Refuses a final manifest with more permissions than its template asks for and the cluster has."""
    permitted = template.special & cluster.special
    found = disallowed(without_claims_of(manifest, cluster.gpu_types), permitted) if spawner.special_namespace else ()
    if not found:
        return
    all_of_them = "; ".join(f"{use.special.value}: {use.what}" for use in found)
    spawner.log.error("pod=%s template=%s uses what it may not: %s", spawner.pod_key, template.name, all_of_them)
    raise StartRefused(_refusal(found, template), reason="special-permission", status=403)


def _refusal(found: tuple[PermissionUse, ...], template: Template) -> str:
    what = [use.what for use in found[:_SHOWN]]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    needs = format_permissions(use.special for use in found)
    return (
        f"The job would have more rights than its template “{template.name}” asks for: {', '.join(what)}{more} "
        f"({needs}). Ask an administrator."
    )
