"""The ports of a job on the host's network: what it wants, and its pods with what they have got. Pure.

There a port is the node's, and two jobs cannot have the same one. The Manager assigns ports with the admission, unique
in the cluster, and Kubernetes sees them as ``hostPort``. Each pod has its own: those of its template, one for its sshd
and, the first pod of a job, one for the notebook. The first pod's annotation has the ports of all pods of the job, so
that a Hub that was killed makes the others with the same ones.

Variables: ``DLSPAWNER_PORT_NAME`` is the first port of a name, ``DLSPAWNER_PORTS_NAME`` all of them where there are
more, ``DLSPAWNER_PORTS`` all of the pod. They come first, or no other variable could refer to them.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dlspawner.core import naming
from dlspawner.core.template import MAIN_CONTAINER, NOTEBOOK_CONTAINER, JobPorts
from dlspawner.core.units import Manifest

NAME = r"(?=.{1,15}\Z)[a-z]([a-z0-9]|-(?=[a-z0-9]))*"  # as Kubernetes names ports
SSH, NOTEBOOK = "ssh", "notebook"
GRACE_SECONDS = 30  # of a program on another port, where the assigned ones are enforced
_NOTEBOOKS = "notebook-port"  # KubeSpawner's name
_PREFIX = "DLSPAWNER_PORT"

Assigned = Mapping[str, Sequence[int]]  # the ports of a pod, by name


def variable(name: str) -> str:
    """The variable with the first port of this name."""
    return f"{_PREFIX}_{name.upper().replace('-', '_')}"


def wanted(pod: Mapping[str, Any], ports: Sequence[JobPorts]) -> tuple[JobPorts, ...]:
    """The ports that a pod of a template with these ports wants; none outside the host's network."""
    if not pod["spec"].get("hostNetwork"):
        return ()
    return _wanted(ports, further=naming.FIRST_POD_ANNOTATION in (pod["metadata"].get("annotations") or {}))


def _wanted(ports: Sequence[JobPorts], *, further: bool) -> tuple[JobPorts, ...]:
    return (JobPorts(SSH), *(() if further else (JobPorts(NOTEBOOK),)), *ports)


def named(wanted: Sequence[JobPorts], numbers: Sequence[int]) -> dict[str, list[int]]:
    """The numbers that were assigned to what a pod wants, by name."""
    left = iter(numbers)
    return {one.name: [next(left) for _ in range(one.count)] for one in wanted}


def of_job(ports: Sequence[JobPorts], numbers: Sequence[Sequence[int]]) -> list[dict[str, list[int]]]:
    """The ports of each pod of a job by name, as the template has them; without one where it has other ones now."""
    each = [(_wanted(ports, further=index > 0), own) for index, own in enumerate(numbers)]
    return [named(had, own) if sum(one.count for one in had) == len(own) else {"": list(own)} for had, own in each]


def annotation(each: Sequence[Assigned]) -> dict[str, str]:
    return {naming.PORTS_ANNOTATION: json.dumps(each)} if any(each) else {}


def assigned(metadata: Mapping[str, Any]) -> list[dict[str, list[int]]]:
    """The ports of each pod of the job whose first pod has this metadata; of a further pod only its own."""
    written = (metadata.get("annotations") or {}).get(naming.PORTS_ANNOTATION)
    found: list[dict[str, list[int]]] = json.loads(written) if written else []
    return found


def ssh_port(pod: Mapping[str, Any], usual: int) -> int:
    """The port of the pod's sshd."""
    own: Assigned = next(iter(assigned(pod["metadata"])), {})
    return own[SSH][0] if own else usual


def with_own(pod: Manifest, own: Assigned) -> Manifest:
    """The pod, or another one of its job with the ports of that one, with these ports."""
    made = copy.deepcopy(pod)
    before = {number for one in assigned(pod["metadata"])[:1] for numbers in one.values() for number in numbers}
    containers = {one["name"]: one for one in made["spec"]["containers"]}
    for container in containers.values():
        ports = container.pop("ports", None) or ()
        kept = [one for one in ports if not (one.get("name") in {*own, _NOTEBOOKS} or one["containerPort"] in before)]
        work = container is containers.get(MAIN_CONTAINER, containers.get(NOTEBOOK_CONTAINER))
        for name, numbers in own.items():
            if container["name"] == NOTEBOOK_CONTAINER if name == NOTEBOOK else work:
                kept += _declared(_NOTEBOOKS if name == NOTEBOOK else name, numbers)
        if kept:
            container["ports"] = kept
        others = [one for one in container.get("env") or () if not one["name"].startswith(_PREFIX)]
        container["env"] = [*_variables(own), *(_at(one, own) for one in others)]
    return made


def _declared(name: str, numbers: Sequence[int]) -> Iterator[Manifest]:
    for index, number in enumerate(numbers):
        port = {"containerPort": number, "hostPort": number, "protocol": "TCP"}
        yield port if index else {"name": name, **port}


def _variables(own: Assigned) -> list[Manifest]:
    values = {variable(name): str(numbers[0]) for name, numbers in own.items()}
    several = {name: numbers for name, numbers in own.items() if len(numbers) > 1}
    values |= {variable(name).replace("PORT", "PORTS", 1): listed(numbers) for name, numbers in several.items()}
    values[f"{_PREFIX}S"] = listed([number for numbers in own.values() for number in numbers])
    return [{"name": name, "value": value} for name, value in values.items()]


def listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _at(variable: Manifest, own: Assigned) -> Manifest:
    """The variable; that of where the server listens for the Hub with the assigned port."""
    if variable["name"] != "JUPYTERHUB_SERVICE_URL" or NOTEBOOK not in own:
        return variable
    scheme, _, rest = str(variable["value"]).partition("://")
    place, slash, path = rest.partition("/")
    return {**variable, "value": f"{scheme}://{place.rpartition(':')[0]}:{own[NOTEBOOK][0]}{slash}{path}"}
