"""Rendering: a template, the user's options and the context of this launch become a fragment of a pod.

The fragment is merged over KubeSpawner's pod: ``disable_gpus_by_default(merge_pod(pod, render(…).fragment), …)``. What
every job of a kind needs is added here and not repeated in each YAML file: command and sshd wrapper, addresses,
storage, CPU, memory and GPUs. What the template's own ``pod:`` says is merged last and wins.

Placeholders, ``${name}``, are substituted leaf by leaf after the YAML is parsed.

* A text that is one placeholder and nothing else takes the value with its type (a number stays a number); within other
  text the value becomes text. Values are never searched for placeholders and never become keys, so no value can change
  the structure that an administrator wrote.
* ``$$`` is a dollar. Any other ``$`` that does not begin ``${`` stays, so Kubernetes' ``$(POD_IP)`` and a shell's
  ``$HOME`` pass untouched.
* Kubernetes itself expands ``$(NAME)`` in commands and environment values. There a *value* has its dollars doubled, so
  that it arrives as it was typed; and what must be text (commands, environment, labels) becomes text.
* ``${port.NAME}`` in a command is a port that is not assigned yet: it becomes the variable that will have it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from dlspawner.core import naming, units
from dlspawner.core.config import CpuMemory, TeamMount
from dlspawner.core.gpus import request_units
from dlspawner.core.launch import host_ports, pod_set
from dlspawner.core.launch import pod as launch_pod
from dlspawner.core.launch.options import HTTP_PORT, InvalidOptions, SelectedOptions, SelectedRole
from dlspawner.core.launch.pod import merge_pod
from dlspawner.core.template import NOTEBOOK_CONTAINER, OptionKind, TeamDataAccess, Template
from dlspawner.core.units import Manifest

JOB_FILES = "/etc/dlspawner"
JOB_DIRECTORY = "/job"  # how a path option says it
HOME_VOLUME, FILES_VOLUME = "home", "job-files"
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - of the job
START = f"{JOB_FILES}/start"

# What a template without a command answers the Hub with, behind the Hub's login: the person's own server at the option
# `http_port`, or the page on how to get in.
# Isolated (-I): neither files of the working directory nor people's own packages take the place of modules.
PAGE_COMMAND = ("python3", "-I", "-c", "${login_proxy}", "--activity-interval=0")

_POD_IP = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}

# Files of the job's Secret that the container sees at a second place.
_BINDS = {
    "passwd": "/etc/passwd",
    "group": "/etc/group",
    "profile.sh": "/etc/profile.d/dlspawner.sh",
    pod_set.SSH_CONFIG: "/etc/ssh/ssh_config.d/dlspawner.conf",
}


@dataclass(frozen=True, slots=True)
class RenderContext:
    """The spawner's values for one launch. The first block are names of placeholders, the second is for rendering only.

    ``None`` means that there is none; a placeholder of that name is then refused with a sentence.
    """

    user: str
    server: str
    unix_name: str
    job: str
    pod_name: str
    default_image: str | None = None
    ssh_host: str | None = None
    ssh_port: int | None = None
    login_proxy: str | None = None  # the program that asks the Hub who is there

    home_claim: str | None = None  # the claim with the person's home directory
    team_mounts: tuple[TeamMount, ...] = ()  # of the team that was chosen
    files_secret: str | None = None  # the job's Secret; None where the job needs no files
    files: tuple[tuple[str, str], ...] = ()  # its (key, path below /etc/dlspawner)
    ssh_image: str | None = None  # brings sshd to images of the person's own; None where they must have it


_NOT_PLACEHOLDERS = frozenset({"home_claim", "team_mounts", "files_secret", "files", "ssh_image"})
CONTEXT_PLACEHOLDERS = frozenset(field.name for field in fields(RenderContext)) - _NOT_PLACEHOLDERS
CHOICE_PLACEHOLDERS = frozenset({"team", "gpus", "gpu_type", "cpu", "memory"})
PATH_PLACEHOLDERS = frozenset({"home", "notebook_dir", "job_directory"})


def placeholder_names(template: Template) -> frozenset[str]:
    """Returns the placeholders that this template may have, but for its ``home``: those of the launch alone."""
    return CONTEXT_PLACEHOLDERS | CHOICE_PLACEHOLDERS | PATH_PLACEHOLDERS | {option.name for option in template.options}


@dataclass(frozen=True, slots=True)
class RenderedTemplate:
    """A template with its values: the ``fragment`` ``{"metadata": …, "spec": …}``, and the roles of several pods."""

    fragment: Manifest
    roles: tuple[pod_set.Role, ...]


def render(template: Template, choices: SelectedOptions, context: RenderContext) -> RenderedTemplate | InvalidOptions:
    """Renders a launch; a value that is missing is named in a sentence."""
    try:
        values = _values(template, choices, context)
        return RenderedTemplate(
            _fragment(template, choices, context, values),
            tuple(_role(template, choices, role, values) for role in choices.roles),
        )
    except MissingValueError as missing:
        option = template.option(missing.name)
        what = f"“{option.title or option.name}”" if option else f"a value for “{missing.name}”"
        return InvalidOptions((f"“{template.title}” needs {what}, which is empty.",))


def _role(template: Template, choices: SelectedOptions, role: SelectedRole, values: Mapping[str, Any]) -> pod_set.Role:
    return pod_set.Role(
        role.name,
        role.count,
        _resources(template, choices, role.amount, role.gpus),
        tuple(map(str, substitute(list(role.command), values, ("args",)))),
        role.least,
        role.gpus,
    )


def _resources(template: Template, choices: SelectedOptions, amount: CpuMemory, gpus: int) -> dict[str, str]:
    resources = {"cpu": units.cpu(amount.cpu_milli), "memory": units.memory(amount.memory_bytes)}
    return resources | request_units(choices.gpu_type, gpus, template.work_container).limits


def log_dir(choices: SelectedOptions, context: RenderContext, home: str) -> str | None:
    """Returns the job's log directory as another job of the same user finds it: absolute, or of an object store."""
    if choices.log_dir is None:
        return None
    return _absolute(choices.log_dir, home, context)


def home_directory(template: Template, context: RenderContext) -> str:
    """The home directory inside the job."""
    return str(substitute(template.home, _context_values(context)))


def job_directory(context: RenderContext, home: str) -> str:
    """The directory of this job, made in the home directory by ``start``.

    Not a mount of its own: a subPath is made by the kubelet, as root, where the person may not write.
    """
    return posixpath.join(home, "jobs", context.job)


def _context_values(context: RenderContext) -> dict[str, Any]:
    return {name: getattr(context, name) for name in CONTEXT_PLACEHOLDERS}


def _values(template: Template, choices: SelectedOptions, context: RenderContext) -> dict[str, Any]:
    values = _context_values(context)
    values |= {
        "team": choices.team,
        "gpus": choices.gpus,
        "gpu_type": choices.gpu_type.name if choices.gpu_type else None,
        "cpu": units.cpu(choices.amount.cpu_milli),
        "memory": units.memory(choices.amount.memory_bytes),
        "home": home_directory(template, context),
    }
    values["job_directory"] = job_directory(context, values["home"])
    values["notebook_dir"] = substitute(template.notebook_dir, values)
    values |= {f"{PORT}{one.name}": f"$({host_ports.variable(one.name)})" for one in template.ports}
    for name, value in choices.values:
        option = template.option(name)
        is_path = option is not None and option.kind is OptionKind.PATH and isinstance(value, str)
        if name not in CHOICE_PLACEHOLDERS:
            values[name] = _absolute(str(value), values["home"], context) if is_path else value
    return values


def _absolute(path: str, home: str, context: RenderContext) -> str:
    if "://" in path:
        return path  # an object store's address
    absolute = posixpath.normpath(posixpath.join(home, f".{path[1:]}" if path.startswith("~") else path))
    if in_job_directory(absolute):
        return posixpath.join(job_directory(context, home), absolute[len(JOB_DIRECTORY) + 1 :]).removesuffix("/")
    return absolute


def in_job_directory(path: str) -> bool:
    """True if an option's path means the directory of the job that uses it."""
    return path == JOB_DIRECTORY or path.startswith(f"{JOB_DIRECTORY}/")


def _fragment(
    template: Template, choices: SelectedOptions, context: RenderContext, values: Mapping[str, Any]
) -> Manifest:
    containers = [_work_container(template, choices, context, values)]
    if template.work_container != NOTEBOOK_CONTAINER:
        containers.append(_login_proxy(template, context, values))
    base = {"containers": containers, **_pod(template, choices, context)}
    if _brings_ssh(template, context):
        base["initContainers"] = [launch_pod.init_container(str(context.ssh_image))]
    spec = _with_amounts(template, merge_pod(base, substitute(template.pod, values)))
    if context.files_secret is not None:
        spec = _with_start(template, context, spec)
    asks = request_units(choices.gpu_type, choices.gpus, template.work_container)
    metadata = {
        "labels": substitute(dict(template.labels), values, ("labels",)),
        "annotations": substitute(dict(template.annotations), values, ("annotations",)) | asks.annotations,
    }
    return {"metadata": {key: value for key, value in metadata.items() if value}, "spec": spec}


def _work_container(
    template: Template, choices: SelectedOptions, context: RenderContext, values: Mapping[str, Any]
) -> Manifest:
    resources = _resources(template, choices, choices.amount, choices.gpus)
    claims = request_units(choices.gpu_type, choices.gpus, template.work_container).claim_names
    container: Manifest = {
        "name": template.work_container,
        "env": _environment(template, choices, context, values),
        "resources": {"limits": resources, "requests": dict(resources)} | ({"claims": claims} if claims else {}),
        "volumeMounts": [*_storage_mounts(template, context, values["home"]), *_file_mounts(context)],
        "terminationMessagePolicy": "FallbackToLogsOnError",  # a failed job's last words reach its owner
    }
    if _is_watched(template):
        container["volumeMounts"] += launch_pod.main_mounts(_brings_ssh(template, context))
    if template.endpoints:
        container["ports"] = [{"name": one.name, "containerPort": one.port} for one in template.endpoints]
    if template.mounts.home is not TeamDataAccess.NONE:
        container["workingDir"] = values["home"]
    if template.option("image") is not None:
        container["image"] = _needed("image", values)
    if template.work_container == NOTEBOOK_CONTAINER:
        container["args"] = _command(template, values)
    return container


def _with_amounts(template: Template, spec: Manifest) -> Manifest:
    """The work container knows its CPU and memory by JupyterHub's names, and has as much shared memory as memory.

    Container runtimes give 64 MiB of shared memory, in which PyTorch's data loaders die of bus errors. A template that
    mounts something at /dev/shm keeps it.
    """
    work = next(one for one in spec["containers"] if one["name"] == template.work_container)
    named = {one["name"] for one in work["env"]}
    resources = work.get("resources") or {}
    told = [one for one in pod_set.amount_variables(resources) if one["name"] not in named]
    work = {**work, "env": [*work["env"], *told]}
    volumes = spec["volumes"]
    if all(one["mountPath"] != SHARED_MEMORY for one in work["volumeMounts"]):
        limit = (resources.get("limits") or {}).get("memory")
        memory_volume = {"medium": "Memory"} | ({"sizeLimit": str(limit)} if limit else {})
        volumes = [*volumes, {"name": "shared-memory", "emptyDir": memory_volume}]
        work["volumeMounts"] = [*work["volumeMounts"], _mount("shared-memory", SHARED_MEMORY, read_only=False)]
    containers = [work if one["name"] == work["name"] else one for one in spec["containers"]]
    return {**spec, "containers": containers, "volumes": volumes}


def _login_proxy(template: Template, context: RenderContext, values: Mapping[str, Any]) -> Manifest:
    """The container that answers the Hub where the person's own image can not; it sees none of the person's files."""
    return {
        "name": NOTEBOOK_CONTAINER,
        "args": _command(template, values),
        "env": [_POD_IP, {"name": "HOME", "value": "/nonexistent"}],
        "volumeMounts": _file_mounts(context) + (launch_pod.proxy_mounts() if _is_watched(template) else []),
    }


def _command(template: Template, values: Mapping[str, Any]) -> list[Any]:
    port = values.get(HTTP_PORT)
    page = [*PAGE_COMMAND, *([f"--server-port={port}"] if port is not None else [])]
    filled: list[Any] = substitute(list(template.command) or page, values, ("args",))
    return filled


def _environment(
    template: Template, choices: SelectedOptions, context: RenderContext, values: Mapping[str, Any]
) -> list[Manifest]:
    plain = {"HOME": values["home"], "USER": context.unix_name, "LOGNAME": context.unix_name}
    if template.work_container == NOTEBOOK_CONTAINER:
        plain["JUPYTERHUB_ROOT_DIR"] = values["notebook_dir"]
    if choices.log_dir is not None:
        plain["DLSPAWNER_LOG_DIR"] = values["log_dir"]
    if template.mounts.job_directory and template.mounts.home is TeamDataAccess.READ_WRITE:
        plain["DLSPAWNER_JOB_DIR"] = values["job_directory"]
    return [_POD_IP, *({"name": name, "value": escape_expansion(str(value))} for name, value in plain.items())]


def _storage_mounts(template: Template, context: RenderContext, home_directory: str) -> list[Manifest]:
    mounts: list[Manifest] = []
    if template.mounts.home is not TeamDataAccess.NONE:
        mounts.append(_mount(HOME_VOLUME, home_directory, template.mounts.home is TeamDataAccess.READ_ONLY))
    if template.mounts.team_data is not TeamDataAccess.NONE:
        only_read = template.mounts.team_data is TeamDataAccess.READ_ONLY
        mounts += [_mount(_team_volume(one), one.path, only_read or one.read_only) for one in context.team_mounts]
    return mounts


def _file_mounts(context: RenderContext) -> list[Manifest]:
    if context.files_secret is None:
        return []
    places = {path: _BINDS[path] for _, path in context.files if path in _BINDS}
    binds = [_mount(FILES_VOLUME, place, read_only=True) | {"subPath": path} for path, place in places.items()]
    return [_mount(FILES_VOLUME, JOB_FILES, read_only=True), *binds]


def _mount(volume: str, path: str, read_only: bool) -> Manifest:
    return {"name": volume, "mountPath": path} | ({"readOnly": True} if read_only else {})


def _pod(template: Template, choices: SelectedOptions, context: RenderContext) -> Manifest:
    pod: Manifest = {
        "volumes": _volumes(template, context),
        "terminationGracePeriodSeconds": int(template.grace_period.total_seconds()),
    }
    kind = choices.gpu_type
    claims = request_units(kind, choices.gpus, template.work_container).claims
    if claims:
        pod["resourceClaims"] = list(claims)
    if kind is not None and kind.node_selector:
        pod["nodeSelector"] = dict(kind.node_selector)
    if kind is not None and kind.scheduler_name:
        pod["schedulerName"] = kind.scheduler_name
    if kind is not None and kind.tolerations:
        pod["tolerations"] = [toleration.manifest() for toleration in kind.tolerations]
    return pod


def _volumes(template: Template, context: RenderContext) -> list[Manifest]:
    volumes: list[Manifest] = launch_pod.volumes(_brings_ssh(template, context)) if _is_watched(template) else []
    if template.mounts.home is not TeamDataAccess.NONE:
        claim = {"persistentVolumeClaim": {"claimName": context.home_claim}}
        volumes.append({"name": HOME_VOLUME} | (claim if context.home_claim else {"emptyDir": {}}))
    if template.mounts.team_data is not TeamDataAccess.NONE:
        claims = {_team_volume(mount): mount.claim for mount in context.team_mounts}
        volumes += [{"name": name, "persistentVolumeClaim": {"claimName": of}} for name, of in claims.items()]
    if context.files_secret is not None:
        modes = dict.fromkeys(_BINDS, 0o444) | {"shell": 0o555}
        items = [
            {"key": key, "path": path} | ({"mode": modes[path]} if path in modes else {}) for key, path in context.files
        ]
        secret = {"secretName": context.files_secret, "defaultMode": 0o400, "items": items}
        volumes.append({"name": FILES_VOLUME, "secret": secret})
    return volumes


def _team_volume(mount: TeamMount) -> str:
    return naming.slug(f"team-{mount.claim}")


def _with_start(template: Template, context: RenderContext, spec: Manifest) -> Manifest:
    """Let the containers begin with the job's ``start``: an init for each, sshd beside the work, the end together."""
    begins: dict[str, list[str]] = {}
    if template.work_container != NOTEBOOK_CONTAINER:
        begins[NOTEBOOK_CONTAINER] = ["/bin/sh", START, "--login-proxy"]
    if template.ssh is not None:
        shell = launch_pod.shell(_brings_ssh(template, context))
        begins[template.work_container] = [*shell, START, *(["--main"] if _is_watched(template) else [])]
    wrapped = []
    for container in spec["containers"]:
        if container["name"] in begins:
            original = [*container.get("command", []), *container.get("args", [])]
            wrapped.append({**container, "command": begins[container["name"]], "args": original})
        else:
            wrapped.append(container)
    return {**spec, "containers": wrapped}


def _is_watched(template: Template) -> bool:
    """True if the work container is ``main`` and begins with ``start``, so that the login proxy can see it end."""
    return template.work_container != NOTEBOOK_CONTAINER and template.ssh is not None


def _brings_ssh(template: Template, context: RenderContext) -> bool:
    return _is_watched(template) and bool(context.ssh_image)


def _needed(name: str, values: Mapping[str, Any]) -> Any:
    if values.get(name) is None:
        raise MissingValueError(name)
    return values[name]


_TOKEN = re.compile(r"\$\$|\$\{([^}]*)\}|\$\{")
_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9-]*)?")
PORT = "port."

# Where Kubernetes wants text, and where it expands $(NAME) once more.
_TEXT_PARENTS = frozenset({"labels", "annotations", "nodeSelector", "matchLabels"})
_EXPANDED_LISTS = frozenset({"command", "args"})


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A placeholder and its path; ``name`` is ``None`` when the text after ``${`` is no name."""

    path: tuple[str | int, ...]
    name: str | None
    text: str


class MissingValueError(Exception):
    """A placeholder has no value at this launch."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def find_placeholders(tree: Any, path: tuple[str | int, ...] = ()) -> Iterator[Placeholder]:
    """Yields every placeholder in a tree of mappings, sequences and leaves; those in keys too, to be refused."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from (Placeholder(path, None, placeholder.text) for placeholder in find_placeholders(key))
            yield from find_placeholders(value, (*path, key))
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            yield from find_placeholders(value, (*path, index))
    elif isinstance(tree, str):
        for match in _TOKEN.finditer(tree):
            if match.group() != "$$":
                name = match.group(1)
                yield Placeholder(path, name if name and _NAME.fullmatch(name) else None, match.group())


def substitute(tree: Any, values: Mapping[str, Any], path: tuple[str | int, ...] = ()) -> Any:
    """Returns a new tree with all values; ``MissingValueError`` for a value that is ``None`` or missing."""
    if isinstance(tree, Mapping):
        return {key: substitute(value, values, (*path, key)) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [substitute(value, values, (*path, index)) for index, value in enumerate(tree)]
    return _substitute_text(tree, values, path) if isinstance(tree, str) else tree


def escape_expansion(value: str) -> str:
    """The text that Kubernetes turns back into ``value`` where it expands ``$(NAME)`` and ``$$``."""
    return re.sub(r"\$\$+|\$(?=\(|\Z)", lambda run: run.group() * 2, value)


def _substitute_text(text: str, values: Mapping[str, Any], path: tuple[str | int, ...]) -> Any:
    expanded = _is_expanded(path)
    whole = _TOKEN.fullmatch(text)
    if whole and whole.group(1) is not None and not expanded and not _TEXT_PARENTS.intersection(path):
        return _value(whole.group(1), values)

    def one(match: re.Match[str]) -> str:
        if match.group() == "$$":
            return "$"
        name = match.group(1) or ""
        written = _written(_value(name, values))
        return escape_expansion(written) if expanded and not name.startswith(PORT) else written

    return _TOKEN.sub(one, text)


def _is_expanded(path: tuple[str | int, ...]) -> bool:
    parent = path[-2] if len(path) > 1 else None
    return parent in _EXPANDED_LISTS or (path[-1:] == ("value",) and "env" in path[-3:-1])


def _value(name: str, values: Mapping[str, Any]) -> Any:
    value = values.get(name)
    if value is None:
        raise MissingValueError(name)
    return value


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
