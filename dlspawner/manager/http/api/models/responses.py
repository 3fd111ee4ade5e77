"""The responses of the REST API, each described once: handlers answer with them, ``openapi`` has their schemas.

Many are made from the attributes of a value (``model_validate``), whose names are then aliases here. Amounts come as
thousandths (`Milli`) and are told as numbers, 1 is a whole GPU or core. Times are ISO 8601 in UTC.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from dlspawner.core.idle import Cause
from dlspawner.core.job import JobState
from dlspawner.core.scheduling.limits import ApprovalKind
from dlspawner.core.text import amount
from dlspawner.manager.http.api.models.requests import Time
from dlspawner.manager.model.approval_request import ApprovalState
from dlspawner.manager.model.gpu_hours import GroupBy
from dlspawner.manager.model.notice import NoticeKind


def _one_of(*words: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "enum": list(words)})


JobId = Annotated[str, WithJsonSchema({"type": "string", "pattern": "^j-[a-z2-7]{12}$"})]
NoticeId = Annotated[str, WithJsonSchema({"type": "string", "pattern": "^[0-9a-f]{16}$"})]
Number = Annotated[int | float, WithJsonSchema({"type": "number", "minimum": 0})]
Milli = Annotated[int | float, BeforeValidator(amount), WithJsonSchema({"type": "number", "minimum": 0})]
Item = TypeVar("Item", bound=BaseModel)


class ResponseModel(BaseModel):
    """A response. Fields with a default may be left out, all others are always there."""

    model_config = ConfigDict(extra="forbid", frozen=True, from_attributes=True)


_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


def as_json(content: BaseModel | Mapping[str, object]) -> str:
    """Returns the text of a response, in ASCII: what people have named cannot act on a reader's terminal.

    Plain mappings are for the Hub, the gateway and jobs, whose clients (`clients.manager`) know the fields.
    """
    if not isinstance(content, BaseModel):
        return json.dumps(content)
    text = content.model_dump_json(by_alias=True, exclude_unset=True)
    return _NOT_ASCII.sub(lambda found: json.dumps(found.group())[1:-1], text)  # only strings have such characters


class ProblemModel(ResponseModel):
    """An error, as in RFC 9457; ``scope``: the scope that the token needs."""

    type: Literal["about:blank"]
    title: str
    status: int
    detail: str
    scope: str = ""


class ListModel(ResponseModel, Generic[Item]):
    """A page of a list; ``next`` is the cursor of the next one, null on the last."""

    items: list[Item]
    next: str | None

    @classmethod
    def model_parametrized_name(cls, params: tuple[Any, ...]) -> str:
        return f"{params[0].__name__.removesuffix('Model')}List"


class EndpointModel(ResponseModel):
    """A way into a job: by the browser at ``url``, by SSH, or ``forward`` for its port at ``address`` of one's own."""

    name: str
    protocol: str
    url: str = ""
    port: int = 0
    login: str = ""
    command: str | None = None
    forward: str = ""
    address: str = ""


class EstimateModel(ResponseModel):
    from_: Time = Field(validation_alias="earliest", serialization_alias="from")
    to: Time = Field(validation_alias="latest")
    basis: str


class StopModel(ResponseModel):
    reason: str
    sentence: str
    at: Time | None


class AlternativeModel(ResponseModel):
    """A job that would start at once instead."""

    gpus: Milli
    gpu_type: str | None
    preemptible: bool


class ApprovalModel(ResponseModel):
    """A request for an approval: ``what`` is asked for, and ``why`` that needs an approval."""

    id: str
    job: JobId
    kind: ApprovalKind
    user: str
    server: str
    team: str
    gpus: Milli
    gpu_type: str | None
    what: str
    why: str
    asked: Time = Field(validation_alias="requested")
    state: ApprovalState = Field(validation_alias="standing")
    decided: Time | None = Field(validation_alias="at")
    by: Annotated[str | None, BeforeValidator(lambda name: name or None)]
    reason: str
    may_decide: bool = Field(default=False, description="By the caller; in lists.")


class JobModel(ResponseModel):
    """A job. GPUs and cores are numbers, 1 is a whole one; times that have not come are null."""

    id: JobId
    user: str
    server: str = Field(description="Empty: the default one.")
    team: str
    team_title: str
    template: str
    state: JobState
    reason: str = Field(description="Of the last event.")
    why: str = Field(description="The state as a sentence.")
    position: int | None = Field(description="In the queue, from 1.")
    estimate: EstimateModel | None = Field(description="The probable start, if known.")
    priority: str
    preemptible: bool
    gpus: Number
    gpu_type: str | None
    cpu: Number
    memory_bytes: int
    nodes: tuple[str | None, ...]
    submitted: Time
    started: Time | None
    ended: Time | None
    endpoints: list[EndpointModel]
    stop: StopModel | None
    notice: Time | None = Field(description="A victim's stop.")
    approval: ApprovalModel | None = Field(description="The latest request for an approval.")


class JobDetailModel(JobModel):
    requeue: bool
    pods: tuple[str, ...]
    extended: dict[str, Number] = Field(description="Extended resources beside GPUs, by Kubernetes' names.")
    ports: list[dict[str, list[int]]] = Field(description="Of the host's network, of each pod, by name.")
    alternatives: list[AlternativeModel]
    page: str | None = Field(description="Of a pending job.")


class PreparingModel(ResponseModel):
    """A start that the Hub still prepares."""

    id: None
    user: str
    server: str
    state: Literal["submitted"]
    why: str


class EventModel(ResponseModel):
    at: Time
    state: JobState
    reason: str
    detail: str


class EventListModel(ListModel[EventModel]):
    shortened: bool = Field(description="These are the latest of very many.")


class PodEventModel(ResponseModel):
    at: Time
    reason: str
    sentence: str
    count: int


class LogModel(ResponseModel):
    """The log of one run of a container."""

    pod: str
    role: str = Field(description="The pod's name within a job of several: worker-1.")
    container: str
    run: int = Field(description="1 is the container's first start.")
    running: bool
    kept: bool = Field(description="Some of it is in the Manager's database.")
    size: int | None = Field(description="Bytes that are kept.")
    read: Time | None
    whole: bool = Field(description="It was read to its end.")
    shortened: bool = Field(description="Only its end is kept.")


class KeptAliveModel(ResponseModel):
    """*Keep alive*: no stop for idleness before ``until``; ``longest``: asking again does not help."""

    until: Time | None
    longest: bool
    sentence: str


class PendingJobModel(ResponseModel):
    job: JobId
    state: Annotated[str, _one_of("queued", "pending-approval", "login-required", "starting")]
    position: int = Field(description="In the queue, from 1; of a job that is not in the queue, where it would be.")
    waiting: int = Field(description="Jobs that wait for the same.")
    why: str
    submitted: Time
    alternatives: list[AlternativeModel]
    page: str


class SeriesModel(ResponseModel):
    """One number for each time, null for what is not known."""

    name: str
    unit: str
    values: tuple[Number | None, ...]


class MaximumModel(ResponseModel):
    pod: str
    name: str
    process: str = Field(description="gpu_<index>_<pid>, where an exporter tells of processes; else empty.")
    unit: str
    value: Number


class UsageModel(ResponseModel):
    """The use of a job at each time; null where it is not known."""

    job: JobId
    since: Time
    until: Time
    step_seconds: Number
    times: list[Time]
    series: list[SeriesModel]
    maxima: list[MaximumModel] = Field(description="In the life of the job, whatever times are asked for.")


class NewsJobModel(ResponseModel):
    id: str
    user: str
    server: str
    state: JobState
    reason: str


class NewsModel(ResponseModel):
    """Data of a server-sent event: each part is there when it has changed; ``more``: other jobs as well."""

    jobs: list[NewsJobModel] = []
    queue: Literal[True] = True
    cluster: Literal[True] = True
    notices: Literal[True] = True
    hub: Literal[True] = True
    more: Literal[True] = True
    detail: str = Field(default="", description="Why the stream has ended.")


class ServerSentEventModel(ResponseModel):
    event: Literal["ready", "changed", "ended"] = "ready"
    data: str = Field(default="", json_schema_extra={"contentMediaType": "application/json"})
    retry: int = Field(default=0, description="Milliseconds until a lost stream is opened again.")


class DescriptionModel(ResponseModel):
    """As in OpenAPI 3.1."""

    openapi: Literal["3.1.0"]
    info: dict[str, str]
    servers: list[dict[str, str]]
    security: list[dict[str, list[str]]]
    paths: dict[str, Any]
    components: dict[str, Any]


# Responses about the cluster.


class AmountsModel(ResponseModel):
    total: Number
    free: Number


class NodeGpusModel(ResponseModel):
    gpu_type: str
    total: Milli
    free: Milli


class NodeExtendedModel(ResponseModel):
    """An extended resource that `cluster.yaml` names."""

    resource: str
    total: Milli
    free: Milli


class NodeModel(ResponseModel):
    name: str
    state: Annotated[str, _one_of("ready", "cordoned", "unhealthy")]
    gpus: tuple[NodeGpusModel, ...]
    extended: tuple[NodeExtendedModel, ...]
    cpu: AmountsModel
    memory_bytes: AmountsModel
    reason: str
    drain_at: Time | None
    jobs: int


class GpuTypeModel(ResponseModel):
    name: str = Field(validation_alias=AliasPath("gpu_type", "name"))
    title: str = Field(validation_alias=AliasPath("gpu_type", "title"))
    total: Milli
    free: Milli
    most_on_one_node: Milli = Field(validation_alias="most")
    unschedulable: Milli
    waiting_jobs: int
    waiting_gpus: Milli


class ClusterModel(ResponseModel):
    at: Time
    gpu_types: list[GpuTypeModel]
    nodes: list[NodeModel]


class QuotaModel(ResponseModel):
    team: str = Field(validation_alias=AliasPath("team", "name"))
    title: Annotated[str, BeforeValidator(lambda team: team.title or team.name)] = Field(validation_alias="team")
    gpu_type: str | None
    resource: str | None = Field(description="An extended resource; there is no GPU type then.")
    entitled: Milli = Field(validation_alias="quota")
    used: Milli
    borrowed: Milli
    free: Milli
    borrow_limit: Milli | None = Field(validation_alias=AliasPath("team", "borrow_limit"))


class WaitingModel(ResponseModel):
    gpu_type: str = Field(validation_alias=AliasPath("gpu_type", "name"))
    jobs: int = Field(validation_alias="waiting_jobs")
    gpus: Milli = Field(validation_alias="waiting_gpus")


class QueueModel(ListModel[JobModel]):
    waiting: list[WaitingModel]
    others: int = Field(description="Pending jobs that the caller may not see.")


class GpuHoursRowModel(ResponseModel):
    """GPU-hours of a day, or of all days; the row is of a team, a user or a GPU type."""

    day: date = date.min
    team: str = ""
    user: str = ""
    gpu_type: str = ""
    requested: Number = Field(description="From submit to the end.")
    allocated: Number = Field(description="From admission until the pods are gone.")
    measured: Number = Field(description="Those of the allocated ones whose use is known.")
    used: Number | None = Field(description="Those of the measured ones that computed.")
    reclaimed: Number = Field(description="After a stop for idleness.")


class FreeGpuHoursModel(ResponseModel):
    day: date
    gpu_type: str
    total: Number
    free: Number
    unschedulable: Number
    fragmented: Number


class GpuHoursModel(ResponseModel):
    by: GroupBy
    since: date
    until: date
    items: list[GpuHoursRowModel]
    totals: list[GpuHoursRowModel]
    free: list[FreeGpuHoursModel]


class UseModel(ResponseModel):
    http: Time | None
    kernel: Time | None = Field(validation_alias="kernel_busy")
    kernels_told: Time | None = Field(validation_alias="kernel_report")
    ssh: Time | None
    ssh_told: Time | None = Field(validation_alias="ssh_report")
    ssh_open: bool
    kept: Time | None


class GpuUseModel(ResponseModel):
    memory_bytes: Number | None
    busy: Time | None = Field(validation_alias="last_busy")


class UnusedJobModel(ResponseModel):
    job: JobId
    user: str
    server: str
    team: str
    template: str
    preemptible: bool
    holds: str = Field(description="What it keeps from others, in words.")
    verdict: str = Field(pattern="^(keep|stop|would-stop|warned-[0-9]+)$")
    why: Cause
    idle: bool
    since: Time | None = Field(description="The last use.")
    window_seconds: Number | None = Field(description="For how long it may be unused; null: for ever.")
    used: UseModel
    gpus: tuple[GpuUseModel, ...]


class CullReportModel(ResponseModel):
    at: Time
    dry_run: bool = Field(description="Jobs are only reported.")
    gpus_unknown: str | None = Field(description="Why the use of GPUs is not known.")
    jobs: list[UnusedJobModel]


# Responses about users.


class KeyModel(ResponseModel):
    id: int
    key: str = Field(description="As in authorized_keys.")
    fingerprint: str
    name: str
    added: Time
    last_used: Time | None


class KeysModel(ResponseModel):
    keys: list[KeyModel]


class AddedKeysModel(KeysModel):
    known: list[KeyModel] = Field(description="Those that were there before.")


class SshSettingsModel(ResponseModel):
    start_on_connect: bool


class SshConfigModel(ResponseModel):
    user: str
    host: str
    port: int
    servers: tuple[str, ...]
    host_keys: tuple[str, ...]


class NoticeModel(ResponseModel):
    """``sentence`` is as it is read now, in UTC; ``text`` has {when} where ``until`` belongs."""

    id: NoticeId
    kind: NoticeKind
    level: Annotated[str, _one_of("info", "warning", "error")]
    sentence: str
    text: str
    job: str = Field(description="Empty in notices for administrators.")
    user: str
    server: str
    posted: Time
    until: Time | None
    ends: Time | None = Field(description="When it says nothing any more.")
    keep: bool = Field(description="It has a button.")
    seen: bool
    page: str | None = Field(description="Of ours, that says more.")


class NoticesModel(ResponseModel):
    notices: list[NoticeModel]
    version: str = Field(description="To be sent as after.")


class KeptByNoticeModel(ResponseModel):
    said: str
