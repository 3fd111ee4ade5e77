"""What a request asks for, read from its path, query and headers. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from dlspawner.devcluster.api import errors
from dlspawner.devcluster.api.objects.resources import BY_PATH, NAMESPACES, Target
from dlspawner.devcluster.api.objects.selectors import Selector, matches, parse_fields, parse_labels
from dlspawner.devcluster.api.store import Version


def parse_path(path: str) -> Target:
    """`/api/v1/namespaces/jobs/pods/p/log` and its relatives; ApiError 404 for anything that is not served."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise errors.unknown_path()
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in NAMESPACES.subresources:
        namespace, rest = rest[1], rest[2:]
    resource = BY_PATH.get((group, version, rest[0]))
    if resource is None or len(rest) > 3 or (namespace and not resource.namespaced) or "" in parts:
        raise errors.unknown_path()
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if subresource and subresource not in resource.subresources:
        raise errors.unknown_path()
    if name and resource.namespaced and not namespace:
        raise errors.unknown_path()
    return Target(resource, namespace, name, subresource)


@dataclass(frozen=True, slots=True)
class Scope:
    """Which objects of a kind a list or watch is about."""

    namespace: str
    labels: Selector
    fields: Selector

    def covers(self, version: Version) -> bool:
        if self.namespace and version.namespace != self.namespace:
            return False
        return matches(self.labels, version.labels) and matches(self.fields, version.fields)


def parse_scope(target: Target, query: Mapping[str, str]) -> Scope:
    fields = parse_fields(query.get("fieldSelector", ""), target.resource)
    return Scope(target.namespace, parse_labels(query.get("labelSelector", "")), fields)


def flag(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "") in ("true", "1", "True", "t", "T")


def number(query: Mapping[str, str], name: str) -> int | None:
    """A query parameter that is a whole number; None when it is not there."""
    text = query.get(name, "")
    if not text:
        return None
    if not text.lstrip("-").isdecimal():
        raise errors.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return int(text)


def resource_version(query: Mapping[str, str]) -> int | None:
    """The revision that a list or watch names; None when it names none."""
    text = query.get("resourceVersion", "")
    if not text:
        return None
    if not text.isdecimal():
        raise errors.bad_request(f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: invalid syntax')
    return int(text)


_MATCHES = ("", "Exact", "NotOlderThan")


def check_list_options(query: Mapping[str, str]) -> None:
    """Checks the combination of parameters about a list's version; ApiError 400 or 422."""
    match, version = query.get("resourceVersionMatch", ""), query.get("resourceVersion", "")
    if query.get("continue") and version not in ("", "0"):
        raise errors.bad_request("specifying resource version is not allowed when using continue")
    field = "resourceVersionMatch"
    watching = flag(query, "watch")
    cause = None
    if watching and "sendInitialEvents" in query and match != "NotOlderThan":
        cause = errors.denied(field, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
    elif match and not version and not watching:
        cause = errors.denied(field, "resourceVersionMatch is forbidden unless resourceVersion is provided")
    elif match not in _MATCHES:
        cause = errors.unsupported(field, match, _MATCHES)
    elif match == "Exact" and version == "0":
        cause = errors.denied(field, 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"')
    if cause is not None:
        raise errors.invalid_options("ListOptions", "meta.k8s.io", "", cause)


_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def verb(method: str, target: Target, query: Mapping[str, str]) -> str:
    """The word by which authorisation knows a request."""
    if method == "GET":
        return "get" if target.name else "watch" if flag(query, "watch") else "list"
    return "deletecollection" if method == "DELETE" and not target.name else _VERBS.get(method, method.lower())


def check_log_options(pod: str, query: Mapping[str, str]) -> None:
    """ApiError 400 or 422 for numbers that a log cannot be cut by."""
    wishes = (("tailLines", 0, "or equal to 0"), ("limitBytes", 1, "0"), ("sinceSeconds", 1, "0"))
    for field, least, words in wishes:
        value = number(query, field)
        if value is not None and value < least:
            cause = errors.wrong(field, value, f"must be greater than {words}")
            raise errors.invalid_options("PodLogOptions", "", pod, cause)


def wants_table(accept: str) -> bool:
    """Tables are what `kubectl get` prints; ApiError 406 for a client that takes no form we have."""
    choices = [choice.strip().replace(" ", "") for choice in accept.split(",")] if accept else ["*/*"]
    for choice in choices:
        media, *parameters = choice.split(";")
        if media in ("application/json", "application/*", "*/*"):
            shape = next((p.removeprefix("as=") for p in parameters if p.startswith("as=")), "")
            if shape in ("", "Table"):
                return shape == "Table"
    raise errors.not_acceptable(["application/json", "application/json;as=Table;g=meta.k8s.io;v=v1"])
