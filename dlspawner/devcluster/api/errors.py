"""Every refusal of the API server: an `ApiError` that is exactly one Kubernetes `Status`.

The wording is Kubernetes' own, because clients (and people) match on it: kubectl prints `message`, client libraries
look at `code` and `reason`, forms look at `details.causes`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dlspawner.devcluster.api.objects.resources import Resource, Target


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that is wrong with one field: `detail` is the whole sentence that follows the field's path."""

    field: str
    reason: str
    detail: str


def required(field: str, hint: str = "") -> Cause:
    return Cause(field, "FieldValueRequired", f"Required value: {hint}" if hint else "Required value")


def wrong(field: str, value: object, why: str) -> Cause:
    return Cause(field, "FieldValueInvalid", f"Invalid value: {_shown(value)}: {why}")


def unsupported(field: str, value: object, allowed: Sequence[str]) -> Cause:
    choices = ", ".join(f'"{choice}"' for choice in sorted(allowed))
    return Cause(field, "FieldValueNotSupported", f"Unsupported value: {_shown(value)}: supported values: {choices}")


def duplicate(field: str, value: object) -> Cause:
    return Cause(field, "FieldValueDuplicate", f"Duplicate value: {_shown(value)}")


def missing(field: str, value: object) -> Cause:
    return Cause(field, "FieldValueNotFound", f"Not found: {_shown(value)}")


def denied(field: str, why: str) -> Cause:
    return Cause(field, "FieldValueForbidden", f"Forbidden: {why}")


def _shown(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


class ApiError(Exception):
    """A request that fails, with everything its `Status` says."""

    def __init__(self, code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = self.details
        status["code"] = self.code
        return status


def _details(resource: Resource, name: str) -> dict[str, Any]:
    details = {"name": name, "group": resource.group, "kind": resource.plural}
    return {key: value for key, value in details.items() if value}


def not_found(resource: Resource, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{resource.qualified} "{name}" not found', _details(resource, name))


def unknown_path() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(resource: Resource, name: str) -> ApiError:
    return ApiError(409, "AlreadyExists", f'{resource.qualified} "{name}" already exists', _details(resource, name))


def conflict(resource: Resource, name: str, why: str) -> ApiError:
    message = f'Operation cannot be fulfilled on {resource.qualified} "{name}": {why}'
    return ApiError(409, "Conflict", message, _details(resource, name))


def stale(resource: Resource, name: str) -> ApiError:
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(resource, name, why)


def invalid(resource: Resource, name: str, causes: Sequence[Cause]) -> ApiError:
    sentences = [f"{cause.field}: {cause.detail}" for cause in causes]
    listed = sentences[0] if len(sentences) == 1 else f"[{', '.join(sentences)}]"
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    details = _details(resource, name) | {
        "kind": resource.kind,
        "causes": [{"reason": cause.reason, "message": cause.detail, "field": cause.field} for cause in causes],
    }
    return ApiError(422, "Invalid", f'{kind} "{name}" is invalid: {listed}', details)


def invalid_options(kind: str, group: str, name: str, cause: Cause) -> ApiError:
    """The options of a request, not an object."""
    details: dict[str, Any] = {"name": name, "group": group, "kind": kind}
    details = {key: value for key, value in details.items() if value}
    details["causes"] = [{"reason": cause.reason, "message": cause.detail, "field": cause.field}]
    title = f"{kind}.{group}" if group else kind
    return ApiError(422, "Invalid", f'{title} "{name}" is invalid: {cause.field}: {cause.detail}', details)


def precondition(resource: Resource, name: str, why: str) -> ApiError:
    """A deletion that names another object than the one there; Kubernetes says the kind here."""
    details = {"name": name, "group": resource.group, "kind": resource.kind}
    title = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    return ApiError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {title} "{name}": {why}',
        {key: value for key, value in details.items() if value},
    )


def forbidden_user(target: Target, verb: str) -> ApiError:
    """The answer about objects without credentials."""
    resource = target.resource
    asked = "/".join(part for part in (resource.plural, target.subresource) if part)
    where = f'in the namespace "{target.namespace}"' if target.namespace else "at the cluster scope"
    what = f'cannot {verb} resource "{asked}" in API group "{resource.group}" {where}'
    named = f'{resource.qualified} "{target.name}"' if target.name else resource.qualified
    message = f'{named} is forbidden: User "system:anonymous" {what}'
    return ApiError(403, "Forbidden", message, _details(resource, target.name))


def forbidden_path(verb: str, path: str) -> ApiError:
    """The answer about everything else without credentials."""
    return ApiError(403, "Forbidden", f'forbidden: User "system:anonymous" cannot {verb} path "{path}"', {})


def forbidden(resource: Resource, name: str, why: str, cause: str | None = None) -> ApiError:
    details = _details(resource, name)
    if cause is not None:
        details["causes"] = [{"reason": cause, "message": why}]
    return ApiError(403, "Forbidden", f'{resource.qualified} "{name}" is forbidden: {why}', details)


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def unauthorized() -> ApiError:
    return ApiError(401, "Unauthorized", "Unauthorized")


def expired(message: str) -> ApiError:
    return ApiError(410, "Expired", message)


def too_large_version(asked: int, current: int) -> ApiError:
    details = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }
    return ApiError(504, "Timeout", f"Timeout: Too large resource version: {asked}, current: {current}", details)


def method_not_allowed() -> ApiError:
    return ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


def unsupported_media_type(message: str) -> ApiError:
    return ApiError(415, "UnsupportedMediaType", message, {})


def not_acceptable(accepted: Sequence[str]) -> ApiError:
    message = f"only the following media types are accepted: {', '.join(accepted)}"
    return ApiError(406, "NotAcceptable", message, {})


def too_large(limit: int) -> ApiError:
    return ApiError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit}", {})


def plain(message: str) -> ApiError:
    """A failure that Kubernetes gives no reason for."""
    return ApiError(500, "", message)


def internal(message: str) -> ApiError:
    return ApiError(500, "InternalError", f"Internal error occurred: {message}", {"causes": [{"message": message}]})
