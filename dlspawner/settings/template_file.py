"""``templates/jobs/NAME.yaml``: one job template; the format is described in ``templates/README.md``."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import timedelta

from dlspawner.core.config import ClusterConfig, SpecialPermission
from dlspawner.core.launch import host_ports, rendering
from dlspawner.core.launch.rendering import CONTEXT_PLACEHOLDERS, placeholder_names
from dlspawner.core.naming import PREEMPTION_LABEL, PREFIX
from dlspawner.core.resources import MOST_GPUS
from dlspawner.core.schedulers import find_engine
from dlspawner.core.template import (
    DEFAULT_HOME,
    DEFAULT_NOTEBOOK_DIR,
    MOST_PODS,
    ActivitySource,
    Endpoint,
    EndpointProtocol,
    EndpointService,
    IdlePolicy,
    JobPorts,
    Mounts,
    OptionKind,
    PodFailurePolicy,
    PodRole,
    PodStart,
    TeamDataAccess,
    Template,
)
from dlspawner.settings.cluster_file import NAME, NAME_HINT
from dlspawner.settings.document import Entry, Section, did_you_mean
from dlspawner.settings.option_entries import read_options
from dlspawner.settings.pod_fragment import check_pod

KEYS = (
    *("title", "description", "icon", "order", "who", "options", "command", "home", "notebook_dir", "endpoints"),
    *("mounts", "pods", "start", "on_pod_failure", "ports", "grace_period_seconds", "idle", "start_on_connect"),
    *("special_permissions", "labels", "annotations", "pod"),
)
_LABEL_KEY = r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_LABEL_VALUE = r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?"
_NETWORKS = ("k8s.v1.cni.cncf.io/", "v1.multus-cni.io/")  # annotations that give a pod networks
_PORT_NAME = r"(?=[a-z0-9-]{1,15}\Z)(?=.*[a-z])[a-z0-9]+(-[a-z0-9]+)*"
# KubeSpawner and the Manager find their pods by these.
_TAKEN_LABELS = ("app", "component", "heritage", "release", PREEMPTION_LABEL)
_ICON = r"[MmLlHhVvCcSsQqTtAaZz0-9 ,.-]{1,2000}"
_ROLE = r"(?!.*-[0-9]+\Z)[a-z]([a-z0-9-]{0,18}[a-z0-9])?"  # pods are called “worker-0”
_NOTEBOOK_PORT = 8888
_MOST_PORTS = 1024
_YEAR = 366 * 24 * 3600
_HOUR = 3600


# Between the end of a pod's grace period and its disappearance: the node's report, and the watch.
_STOP_SECONDS = 30


def read_template(
    name: str, root: Entry, cluster: ClusterConfig, teams: Collection[str] | None, start_timeout: float | None = None
) -> Template:
    """Returns the template in the file, as far as it can be read; ``teams`` are the names permitted in ``who``."""
    file = root.section(KEYS)
    if not re.fullmatch(NAME, name, re.ASCII):
        root.problem(f"the file's name without .yaml is the template's name and must be {NAME_HINT}.")
    title = file.need("title")
    special = frozenset(_special(entry, cluster) for entry in file.items("special_permissions"))
    template = Template(
        name=name,
        title=title.text() if title else name,
        description=file.text("description"),
        icon=file.text("icon", "", _ICON, "the path of an SVG picture, such as M2 2h12v12H2z"),
        order=file.integer("order", 0, -1000, 1000),
        who=_who(file, teams),
        options=read_options(file, cluster),
        command=tuple(part.text() for part in file.items("command")),
        home=file.text("home", DEFAULT_HOME),
        notebook_dir=file.text("notebook_dir", DEFAULT_NOTEBOOK_DIR),
        endpoints=_endpoints(file),
        mounts=_mounts(file, special=bool(special)),
        roles=_roles(file),
        on_pod_failure=file.one_of("on_pod_failure", PodFailurePolicy.STOP),
        ports=_ports(file, cluster),
        grace_period=timedelta(seconds=file.integer("grace_period_seconds", 30, 1, _HOUR)),
        idle=_idle(file),
        start_on_connect=file.boolean("start_on_connect", False) if file.get("start_on_connect") else None,
        special=special,
        labels=_labels(file),
        annotations=_annotations(file),
        pod=_pod(file),
    )
    _check_engine(file, cluster)
    _check(template, file, special if root.problems.wrong_cluster else special & cluster.special)
    if start_timeout is not None:
        _check_grace(template, root, start_timeout)
    return template


def _check_grace(template: Template, root: Entry, start_timeout: float) -> None:
    """Checks the grace period: the Hub waits no longer for a job's stop than for its start."""
    most = int(start_timeout) - _STOP_SECONDS
    if template.grace_period.total_seconds() > most:
        entries = root.value if isinstance(root.value, dict) else {}
        entries.get("grace_period_seconds", root).problem(
            f"grace_period_seconds may be {max(most, 0)} at most with the Hub's start_timeout of {int(start_timeout)} "
            f"seconds, which is also how long the Hub waits for a job to stop: lower the one, or raise the other."
        )


def _who(file: Section, teams: Collection[str] | None) -> tuple[str, ...]:
    for entry in file.items("who"):
        if teams is not None:
            entry.expect(entry.value, teams, "team")
    return file.texts("who")


def _special(entry: Entry, cluster: ClusterConfig) -> SpecialPermission:
    special = entry.one_of(SpecialPermission)
    if special not in cluster.special:
        entry.problem(f"{special.value} is not switched on in the cluster's special_permissions.", against_cluster=True)
    return special


def _endpoints(file: Section) -> tuple[Endpoint, ...]:
    endpoints: list[Endpoint] = []
    for entry in file.items("endpoints"):
        section = entry.section(("name", "port", "protocol", "expose"))
        port, protocol = section.need("port"), section.need("protocol")
        endpoint = Endpoint(
            name=section.need_text("name", _PORT_NAME, "small letters, digits and dashes, at most 15, with a letter"),
            port=port.integer(1024, 65535) if port else 0,
            protocol=protocol.one_of(EndpointProtocol) if protocol else EndpointProtocol.TCP,
            expose=section.one_of("expose", EndpointService.CLUSTER),
        )
        _check_endpoint(entry, endpoint, endpoints)
        endpoints.append(endpoint)
    return tuple(endpoints)


def _check_endpoint(entry: Entry, endpoint: Endpoint, others: Collection[Endpoint]) -> None:
    if endpoint.name in {other.name for other in others}:
        entry.problem(f"there are two endpoints “{endpoint.name}”.")
    if endpoint.port in {other.port for other in others}:
        entry.problem(f"there are two endpoints on port {endpoint.port}.")
    if endpoint.port == _NOTEBOOK_PORT:
        entry.problem(f"port {_NOTEBOOK_PORT} is where the job answers the Hub.")
    if endpoint.protocol is EndpointProtocol.SSH and any(other.protocol is EndpointProtocol.SSH for other in others):
        entry.problem("a job has one ssh endpoint at most.")
    if endpoint.protocol is not EndpointProtocol.SSH and endpoint.expose is EndpointService.NODEPORT:
        entry.problem(
            f"{endpoint.protocol.value} by NodePort would let people in without login; "
            "write expose: cluster, and reach it with ssh -L."
        )


def _mounts(file: Section, *, special: bool) -> Mounts:
    """Returns the mounts; the claims with a team's data are not in the namespace of jobs with special permissions."""
    section = file.section("mounts", ("home", "team_data", "job_directory"))
    team_data = TeamDataAccess.NONE if special else TeamDataAccess.READ_WRITE
    if section is None:
        return Mounts(team_data=team_data)
    return Mounts(
        home=section.one_of("home", TeamDataAccess.READ_WRITE),
        team_data=section.one_of("team_data", team_data),
        job_directory=section.boolean("job_directory", default=True),
    )


def _roles(file: Section) -> tuple[PodRole, ...]:
    roles: list[PodRole] = []
    for entry in file.items("pods"):
        section = entry.section(("role", "count", "min", "gpus", "cpu", "memory", "command") if roles else ("role",))
        role = PodRole(
            name=section.need_text(
                "role", _ROLE, "small letters, digits and dashes, at most 20, with a letter first and no number last"
            ),
            count=_count(section),
            gpus=section.maybe_integer("gpus", 0, MOST_GPUS),
            cpu=cpu.quantity() if (cpu := section.get("cpu")) else None,
            memory=memory.quantity() if (memory := section.get("memory")) else None,
            command=section.texts("command"),
            least=section.maybe_integer("min", 0, MOST_PODS),
        )
        if role.name in {other.name for other in roles}:
            entry.problem(f"there are two roles “{role.name}”.")
        roles.append(role)
    return tuple(roles)


def _count(section: Section) -> int | str:
    """Returns a number of pods, or the name of the option that has it."""
    found = section.get("count")
    if found is not None and isinstance(found.value, str):
        named = [
            placeholder.name
            for placeholder in rendering.find_placeholders(found.value)
            if placeholder.text == found.value
        ]
        return (named[0] or "") if named else found.integer(1, MOST_PODS)
    return found.integer(1, MOST_PODS) if found is not None else 1


def _check_roles(template: Template, file: Section) -> None:
    found, start = file.get("pods"), file.get("start")
    incremental = file.one_of("start", PodStart.TOGETHER) is PodStart.INCREMENTAL
    if incremental is not any(role.least is not None for role in template.roles):
        (start or found or file.entry).problem("start: incremental and the min of a role need each other.")
    if incremental and template.pod.get("hostNetwork") is True:
        (start or file.entry).problem("a job on the host's network starts with all of its pods: its ports are theirs.")
    if found is None or not isinstance(found.value, list):
        return
    if len(template.roles) < 2:
        found.problem("a job of several pods has at least two roles: that of the first pod, and others.")
    if template.ssh is None:
        found.problem("a job of several pods needs an ssh endpoint, by which its pods reach each other.")
    if template.mounts.home is TeamDataAccess.NONE:
        found.problem("a job of several pods needs the home directory, which its pods share.")
    for role, entry in zip(template.roles, found.items(), strict=True):
        option = template.option(role.count) if isinstance(role.count, str) else None
        if isinstance(role.count, str) and (option is None or option.kind is not OptionKind.INTEGER):
            entry.problem(
                f"its count must be a number of pods or an option of type integer, such as ${{{role.name}s}}."
            )


def _ports(file: Section, cluster: ClusterConfig) -> tuple[JobPorts, ...]:
    ports: list[JobPorts] = []
    for entry in file.items("ports"):
        section = entry.section(("name", "count"))
        hint = "small letters, digits and dashes, at most 15, with a letter first"
        port = JobPorts(section.need_text("name", host_ports.NAME, hint), section.integer("count", 1, 1, _MOST_PORTS))
        if port.name in {host_ports.SSH, host_ports.NOTEBOOK}:
            entry.problem(f"“{port.name}” is what the job's own port is called.")
        if port.name in {other.name for other in ports}:
            entry.problem(f"there are two ports “{port.name}”.")
        ports.append(port)
    found = file.get("ports")
    if found is not None and cluster.host_ports is None:
        found.problem("the cluster file has no host_ports to assign from: give it a range.", against_cluster=True)
    return tuple(ports)


def _check_ports(template: Template, file: Section) -> None:
    """Checks that a job on the host's network can use the ports that it gets."""
    found = file.get("ports")
    if template.pod.get("hostNetwork") is not True:
        if found is not None:
            found.problem("only a job on the host's network has ports of it: write pod: {hostNetwork: true}.")
    elif template.ssh is not None and template.ssh.name != host_ports.SSH:
        (file.get("endpoints") or file.entry).problem("on the host's network the ssh endpoint must be named ssh.")


def _idle(file: Section) -> IdlePolicy:
    windows = ("window_seconds", "preemptible_window_seconds", "lifetime_seconds", "http_alone_seconds")
    section = file.section("idle", (*windows, "dry_run", "counts"))
    if section is None:
        return IdlePolicy()
    counts = section.get("counts")
    return IdlePolicy(
        window=section.maybe_seconds("window_seconds", 60, _YEAR),
        preemptible_window=section.maybe_seconds("preemptible_window_seconds", 60, _YEAR),
        lifetime=section.maybe_seconds("lifetime_seconds", 60, _YEAR),
        http_alone=section.maybe_seconds("http_alone_seconds", 60, _YEAR),
        dry_run=section.boolean("dry_run", True) if section.get("dry_run") else None,
        counts=tuple(entry.one_of(ActivitySource) for entry in counts.items()) if counts else IdlePolicy().counts,
    )


def _check_engine(file: Section, cluster: ClusterConfig) -> None:
    """Finds what is not for the engine underneath: keys that are its own, or the Manager's, and jobs that grow."""
    engine = find_engine(cluster.scheduler)
    if engine is not None and (start := file.get("start")) is not None and start.value == PodStart.INCREMENTAL.value:
        start.problem(f"{cluster.scheduler.title} places all pods of a job together.")
    for part in ("labels", "annotations"):
        for key, entry in file.children(part).items():
            if engine is not None and any(f".{key.split('/')[0]}".endswith(f".{one}") for one in engine.domains):
                entry.problem(f"{key} is a key of {cluster.scheduler.title}, which gets its jobs from the Manager.")


def _labels(file: Section) -> tuple[tuple[str, str], ...]:
    labels = file.children("labels")
    for key, entry in labels.items():
        _check_key(key, entry)
        if key in _TAKEN_LABELS:
            entry.problem(f"the label {key} is set by the spawner.")
        if any(rendering.find_placeholders(entry.value)):
            entry.problem(
                "a label has no placeholders, because a chosen text may be no valid label; use an annotation."
            )
        else:
            entry.text(_LABEL_VALUE, "a label value: at most 63 letters, digits, “-”, “_” and “.”")
    return tuple((key, str(entry.value)) for key, entry in labels.items())


def _annotations(file: Section) -> tuple[tuple[str, str], ...]:
    annotations = file.children("annotations")
    for key, entry in annotations.items():
        _check_key(key, entry)
        if key.startswith(_NETWORKS) and any(rendering.find_placeholders(entry.text())):
            entry.problem("the networks of a pod are written out, without placeholders.")
        entry.text()
    return tuple((key, str(entry.value)) for key, entry in annotations.items())


def _check_key(key: str, entry: Entry) -> None:
    if key.startswith((PREFIX, "hub.jupyter.org/")):
        entry.problem(f"{key.partition('/')[0]}/ is the product's own prefix.")
    elif not re.fullmatch(_LABEL_KEY, key, re.ASCII):
        entry.problem("is not a valid key for a label or annotation.")


def _pod(file: Section) -> dict[str, object]:
    found = file.get("pod")
    plain = found.plain() if found is not None and isinstance(found.value, dict) else {}
    # check_pod reports wrong shapes; the kept part must be safe for the checks that follow.
    containers = plain.get("containers", [])
    if not isinstance(containers, list) or not all(isinstance(one, dict) for one in containers):
        plain.pop("containers")
    return dict(plain)


def _check(template: Template, file: Section, special: frozenset[SpecialPermission]) -> None:
    """Checks the rules about the template as a whole."""
    pod = file.get("pod")
    if pod is not None:
        image = template.option("image") is not None
        check_pod(pod, ssh=template.ssh is not None, image=image, allowed=special)
    if not template.command and template.ssh is None:
        file.entry.problem("without a command the job shows how to get in by ssh, so it needs an ssh endpoint.")
    _check_roles(template, file)
    _check_ports(template, file)
    names = placeholder_names(template)
    ports = frozenset(f"{rendering.PORT}{one.name}" for one in template.ports)
    places = {"home": CONTEXT_PLACEHOLDERS, "notebook_dir": names - {"notebook_dir"}}
    places |= {"command": names | ports, "pods": names | ports}  # where Kubernetes expands variables
    for key in ("command", "home", "notebook_dir", "pods", "annotations", "pod"):
        found = file.get(key)
        for entry in found.walk() if found is not None else ():
            _check_placeholders(entry, places.get(key, names))
    for key in ("home", "notebook_dir"):
        path = getattr(template, key)
        if not path.startswith(("/", "${home}")) or ".." in path.split("/"):
            (file.get(key) or file.entry).problem("must be an absolute path without “..”.")
    if template.mounts.home is TeamDataAccess.NONE and template.option("log_dir") is not None:
        (file.get("mounts") or file.entry).problem("a log directory needs the home directory.")


def _check_placeholders(entry: Entry, known: frozenset[str]) -> None:
    for placeholder in rendering.find_placeholders(list(entry.value) if isinstance(entry.value, dict) else entry.value):
        if isinstance(entry.value, list):
            return  # its items are checked one by one
        if isinstance(entry.value, dict):
            entry.problem(f"a key must not have placeholders: {placeholder.text}.")
        elif placeholder.name is None:
            entry.problem(f"{placeholder.text} is no placeholder: write ${{name}}, or $${{…}} for the text itself.")
        elif placeholder.name not in known:
            near, names = did_you_mean(placeholder.name, known), ", ".join(sorted(known))
            entry.problem(f"there is no value for the placeholder {placeholder.text}{near}. Known here: {names}.")
