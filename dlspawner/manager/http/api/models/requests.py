"""The queries and request bodies of the REST API, each described once.

Handlers validate with these models, and ``openapi`` takes its schemas from them. Bodies are strict and closed, so that
a typing error is not ignored: an unknown field, or text for a number, is 422 with the field's name.
"""

from __future__ import annotations

import base64
import json
import re
from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from dlspawner.core.config import SpecialPermission
from dlspawner.core.job import JobState
from dlspawner.core.scheduling.limits import ApprovalKind
from dlspawner.core.unix_account import LARGEST
from dlspawner.manager.model.approval_request import LONGEST_REASON, ApprovalState
from dlspawner.manager.model.gpu_hours import GroupBy
from dlspawner.manager.model.job_history import JobCursor, JobFilter

MAX_NAME = 255  # characters of a name that a database and an address can hold
MAX_SUGGESTIONS = 20
MAX_KEY_PAIRS = 1000
MAX_OPTIONS = 100
MAX_LIMIT = 500  # entries of a page of a list
MAX_SEARCH = 200
LIVE = "live"
STATES = tuple(state.value for state in JobState)
TAIL = 1000
_MOST_PROBLEMS = 3  # of one request that are told
_LONGEST_SECONDS = 10 * 366 * 86400.0


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("a name has no NUL")
    return text


def _plain(value: Any) -> Any:
    """The values of a form; their meaning is checked by the Hub."""
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and abs(value) < float("inf")):
        return value
    raise ValueError("must be text, a number, or true or false")


Name = Annotated[str, Field(max_length=MAX_NAME), AfterValidator(_no_nul)]
NonEmptyName = Annotated[str, Field(min_length=1, max_length=MAX_NAME), AfterValidator(_no_nul)]
Option = Annotated[
    Any, AfterValidator(_plain), Field(json_schema_extra={"type": ["string", "number", "boolean", "null"]})
]
# How long ago something was: the clocks of pods and gateways are theirs.
Seconds = Annotated[
    float, Field(allow_inf_nan=False), AfterValidator(lambda value: min(max(0.0, value), _LONGEST_SECONDS))
]


def _state(word: str) -> str:
    if word not in {LIVE, *STATES}:
        raise ValueError(f"no such state; known are {LIVE} (all but ended), {', '.join(STATES)}")
    return word


def _utc(at: datetime) -> datetime:
    try:
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except OverflowError:
        raise ValueError("must be a time such as 2031-12-24T18:00:00Z") from None


def _day(text: object) -> object:
    """A day, or the day in UTC of a time."""
    if not isinstance(text, str) or len(text) == 10:
        return text
    try:
        return datetime.fromisoformat(text).astimezone(UTC).date()
    except (ValueError, OverflowError):
        raise ValueError("must be a day such as 2026-11-22") from None


def read_cursor(text: object) -> JobCursor | None:
    """The place after which a page begins; None for the first page."""
    if not text:
        return None
    try:
        at, job = json.loads(base64.b64decode(str(text), altchars=b"-_", validate=True))
        place = JobCursor(datetime.fromisoformat(at), job)
        if place.submitted.tzinfo is None or not re.fullmatch(r"[a-z0-9-]{1,64}", job):
            raise ValueError
        place.submitted.astimezone(UTC)
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise ValueError("must be what the page before gave as next") from None
    return place


def write_cursor(place: JobCursor) -> str:
    """The text that ``read_cursor`` reads. A cursor is no secret and no right, which is checked for every page."""
    content = json.dumps([place.submitted.astimezone(UTC).isoformat(), place.job])
    return base64.b64encode(content.encode(), altchars=b"-_").decode()


StateWord = Annotated[str, AfterValidator(_state), WithJsonSchema({"type": "string", "enum": [LIVE, *STATES]})]
Time = Annotated[datetime, AfterValidator(_utc)]
Day = Annotated[date, BeforeValidator(_day)]
Cursor = Annotated[
    JobCursor | None,
    PlainValidator(read_cursor),
    WithJsonSchema({"type": "string"}),
    Field(description="A page's next."),
]
Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT, description="Entries of a page.")]
Words = Annotated[
    str, Field(max_length=MAX_SEARCH, description="Only entries with these words."), AfterValidator(_no_nul)
]
LogPlace = Annotated[str, Field(pattern="^([0-9a-f]{32})?$")]


class Query(BaseModel):
    """The parameters of a request. One of another name is wrong, so that a typing error filters nothing unseen."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _once(cls, value: object, info: ValidationInfo) -> object:
        """Of what can be given once, the one value of the list that a query has."""
        repeats = get_origin(cls.model_fields[str(info.field_name)].annotation) is tuple
        if repeats or not isinstance(value, list):
            return value
        if len(value) != 1:
            raise ValueError("can be given once")
        return value[0]


class RequestBody(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def explain(error: ValidationError, kind: str, model: type[BaseModel]) -> str:
    """Returns a sentence for each of the first problems, with the name of the field or parameter (the ``kind``)."""
    sentences = []
    for one in error.errors(include_url=False, include_input=False)[:_MOST_PROBLEMS]:
        name = ascii(".".join(map(str, one["loc"]))[:100])
        match one["type"]:
            case "missing":
                sentences.append(f"The {kind} {name} is missing.")
            case "extra_forbidden" if len(one["loc"]) == 1:
                sentences.append(f"There is no {kind} {name}; known are {', '.join(sorted(model.model_fields))}.")
            case "value_error" if not one["loc"]:
                sentences.append(str(one["ctx"]["error"]))
            case "value_error":
                sentences.append(f"The {kind} {name}: {one['ctx']['error']}.")
            case _:
                sentences.append(f"The {kind} {name}: {one['msg'][0].lower()}{one['msg'][1:]}.")
    return " ".join(sentences)


# Queries.


class JobsQuery(Query):
    """Which jobs; an empty ``gpu_type``: jobs without GPUs."""

    user: Name | None = None
    team: Name | None = None
    state: tuple[StateWord, ...] = ()
    template: Name | None = None
    gpu_type: Name | None = Field(default=None, description="Empty: no GPUs.")
    server: Name | None = Field(default=None, description="Empty: the default one.")
    preemptible: bool | None = None
    since: Time | None = Field(default=None, description="Submitted then or later.")
    until: Time | None = Field(default=None, description="Submitted before.")
    limit: Limit = 50
    cursor: Cursor = None

    def job_filter(self) -> JobFilter:
        states = {JobState(word) for word in self.state if word != LIVE}
        if LIVE in self.state:
            states |= set(JobState) - {JobState.ENDED}
        return JobFilter(
            **self.model_dump(include={"user", "team", "template", "gpu_type", "server", "preemptible"}),
            since=self.since,
            until=self.until,
            states=frozenset(states),
        )


class QueueQuery(Query):
    """A page of the queue; ``cursor`` is the number of entries on the earlier pages."""

    limit: Limit = 50
    cursor: int = Field(default=0, ge=0, lt=10**8)


class ApprovalsQuery(Query):
    """Which requests for an approval: ``decide``, those to decide, or ``asked``, one's own."""

    mine: Literal["", "decide", "asked"] = ""
    state: tuple[ApprovalState, ...] = ()
    kind: tuple[ApprovalKind, ...] = ()
    team: Name = ""
    user: Name = ""
    job: Name = ""
    limit: Limit = 50
    cursor: Cursor = None


class SearchQuery(Query):
    search: Words = ""


class LogQuery(Query):
    pod: Name = Field(default="", description="Its role, as worker-1, name or uid; empty: the first.")
    container: Name = Field(default="", description="Empty: the user's own program.")
    run: int | None = Field(default=None, ge=0, lt=10**7, description="The first start is 1.")
    previous: bool = Field(default=False, description="The run before the newest.")
    tail: int = Field(default=TAIL, ge=0, lt=10**7, description="The last lines; 0: all that is kept.")
    search: Words = ""
    follow: bool = Field(default=False, description="Go on for ten minutes at most; not with tail or search.")
    place: LogPlace = Field(default="", description="A name of yours for where a followed log ends.")
    after: LogPlace = Field(default="", description="Go on at the place of this name; with follow.")

    @model_validator(mode="after")
    def _follows(self) -> LogQuery:
        if not self.follow and (self.place or self.after):
            raise ValueError("The parameters place and after need follow.")
        if self.follow and self.model_fields_set & {"tail", "search"}:
            raise ValueError("A log that is followed is not searched, and begins with its last lines: leave out both.")
        return self

    @property
    def lines(self) -> int:
        """Returns the number of lines to be read; 0 for all."""
        return 0 if self.search else self.tail


class UsageQuery(Query):
    since: Time | None = None
    until: Time | None = None
    step: int | None = Field(default=None, ge=15, lt=10**7)


class PeriodQuery(Query):
    by: GroupBy = GroupBy.TEAM
    since: Day | None = Field(default=None, description="The first day.")
    until: Day | None = Field(default=None, description="The last day.")


class NoticesQuery(Query):
    """With ``after``, the version that the reader has, the answer waits for another one."""

    after: str = Field(default="", description="The version that is known.")
    wait: float = Field(default=0, ge=0, le=300, allow_inf_nan=False, description="At most so many seconds.")


class ServerQuery(Query):
    server: Name | None = None


class PodQuery(Query):
    pod: Name = ""


class StartQuery(Query):
    job: Name = ""


# Of the Hub.


class UidRangeBody(RequestBody):
    first_uid: int = Field(gt=0)
    last_uid: int = Field(le=LARGEST)

    @model_validator(mode="after")
    def _in_order(self) -> UidRangeBody:
        if self.first_uid > self.last_uid:
            raise ValueError("first_uid is larger than last_uid.")
        return self


class PrepareStartBody(UidRangeBody):
    server: Name


class RenamedBody(RequestBody):
    name: NonEmptyName


class InterruptedStartBody(RequestBody):
    server: Name
    job: Name = ""


class ReleasedBody(RequestBody):
    """No pod was created; ``temporary``: a later start may succeed. ``made``: one was, and the job has ended."""

    user: str
    temporary: bool = False
    why: str = ""
    made: bool = False


class LeftBody(RequestBody):
    """The Hub ends the start of a job of this user, with pods that wait in the cluster."""

    user: NonEmptyName


class AdmissionBody(RequestBody):
    """A job that is to start, with the essentials of its final pods."""

    user: NonEmptyName
    server: Name
    team: Name
    template: Name
    preemptible: bool
    priority: Name
    requeue: bool
    request_milliseconds: int
    namespace: Name
    pods: tuple[dict[str, Any], ...] = Field(min_length=1)
    special: tuple[SpecialPermission, ...] = ()
    image: str = ""
    nonce: Name = ""
    options: dict[str, Any] = {}
    email: Name = ""  # that the authenticator knows
    ports: tuple[Annotated[int, Field(ge=0)], ...] = ()  # of the host, that each pod wants

    @model_validator(mode="after")
    def _of_each_pod(self) -> AdmissionBody:
        if self.ports and len(self.ports) != len(self.pods):
            raise ValueError("The field 'ports' has a number for each pod.")
        return self


# Of pods and the SSH gateway.


class KernelsBody(RequestBody):
    busy: bool
    seconds: Seconds | None


class WrongPortBody(RequestBody):
    program: str
    port: int


class SshSessionsBody(RequestBody):
    """All sessions of a gateway: user, server, seconds since the last byte, open or not."""

    gateway: str
    sessions: Annotated[list[tuple[Name, Name, Seconds | None, bool]], FailFast()]


class SuggestedKeyBody(RequestBody):
    key: str
    source: str = ""


class SuggestedKeysBody(RequestBody):
    keys: list[SuggestedKeyBody] = Field(max_length=MAX_SUGGESTIONS)


class SshAccessBody(RequestBody):
    keys: Annotated[list[tuple[Name, Name]], Field(max_length=MAX_KEY_PAIRS), FailFast()]


# Of users.


class KeyBody(RequestBody):
    """SSH keys to add, as in authorized_keys; a name fits one key."""

    key: str
    name: str = ""


class SshSettingsBody(RequestBody):
    """The user's settings for SSH logins."""

    start_on_connect: bool


class DecisionBody(RequestBody):
    """A decision about the request for an approval; ``request``: the id that was read before."""

    reason: str = Field(default="", max_length=LONGEST_REASON)
    request: Name = ""


class CordonBody(RequestBody):
    """Nothing new starts on a node; ``drain_at``: what runs there is stopped then, and its people are told at once."""

    reason: str = Field(min_length=1, max_length=200)
    drain_at: Time | None = None


class SubmissionBody(RequestBody):
    """A server to start with the options of the form; without ``user`` the caller's, without ``server`` the default."""

    server: Name = ""
    user: NonEmptyName | None = None
    options: dict[str, Option] = Field(max_length=MAX_OPTIONS)
