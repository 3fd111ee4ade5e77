"""The JSON of the REST API: every request body, query and response, each described once.

Handlers validate with these models, and ``openapi`` takes its schemas from them. Bodies are strict and closed, so that
a typing error is not ignored: an unknown field, or text for a number, is 422 with the field's name.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, ValidationError, model_validator

from dlspawner.core.config import SpecialPermission
from dlspawner.core.unix_account import LARGEST
from dlspawner.manager.model.approval_request import LONGEST_REASON

MAX_NAME = 255  # characters of a name that a database and an address can hold
MAX_SUGGESTIONS = 20
MAX_KEY_PAIRS = 1000
MAX_OPTIONS = 100
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


class RequestBody(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class ResponseModel(BaseModel):
    """A response. Fields with a default may be left out, all others are always there."""

    model_config = ConfigDict(extra="forbid", frozen=True, from_attributes=True)


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


# Of the Hub.


class UidRangeBody(RequestBody):
    """The uids of cluster.yaml, for a user without one from the authenticator."""

    first_uid: int = Field(gt=0)
    last_uid: int = Field(le=LARGEST)

    @model_validator(mode="after")
    def _in_order(self) -> UidRangeBody:
        if self.first_uid > self.last_uid:
            raise ValueError("first_uid is larger than last_uid.")
        return self


class PrepareStartBody(UidRangeBody):
    """A start whose pod is not built yet."""

    server: Name


class InterruptedStartBody(RequestBody):
    """A server that its user has stopped while the Hub started it."""

    server: Name
    job: Name = ""


class ReleasedBody(RequestBody):
    """A pod was not made, and will not be; ``passes``: it could be soon."""

    user: str
    passes: bool = False
    why: str = ""


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


class AdmissionModel(ResponseModel):
    """The decision about a job: admit, wait or refuse; of an admission until when, and the node of each pod."""

    decision: str
    reason: str
    sentences: tuple[str, ...]
    seconds: float
    nodes: tuple[str | None, ...]


class StopReasonModel(ResponseModel):
    """Why the Manager stops a job."""

    reason: str
    sentence: str


class UserPendingJobModel(ResponseModel):
    """A pending job; ``never``: it can not start as things are."""

    job: str
    server: str
    state: str
    position: int
    why: str
    never: bool


class UserPendingJobsModel(ResponseModel):
    """The pending jobs of a user."""

    waiting: list[UserPendingJobModel]


class UnixAccountModel(ResponseModel):
    """The uid and gid that a user has for ever."""

    uid: int
    gid: int


class PrepareStartModel(UnixAccountModel):
    """``job`` is the pending job of the server, which this start continues."""

    job: str | None


class LogKeptModel(ResponseModel):
    """``kept``: the logs of a pod's ended containers are in the database."""

    kept: bool


# Of pods and the SSH gateway.


class KernelsBody(RequestBody):
    """A pod's kernels: busy or not, and since when."""

    busy: bool
    seconds: Seconds | None


class SshSessionsBody(RequestBody):
    """All sessions of a gateway: user, server, seconds since the last byte, open or not."""

    gateway: str
    sessions: Annotated[list[tuple[Name, Name, Seconds | None, bool]], FailFast()]


class SuggestedKeyBody(RequestBody):
    """A file that may hold a public key."""

    key: str
    source: str = ""


class SuggestedKeysBody(RequestBody):
    """The files that a job has found in the home directory."""

    keys: list[SuggestedKeyBody] = Field(max_length=MAX_SUGGESTIONS)


class SshAccessBody(RequestBody):
    """The keys of open sessions: users and fingerprints."""

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


class SubmissionBody(RequestBody):
    """A server to start with the options of the form; without ``user`` the caller's, without ``server`` the default."""

    server: Name = ""
    user: NonEmptyName | None = None
    options: dict[str, Option] = Field(max_length=MAX_OPTIONS)
