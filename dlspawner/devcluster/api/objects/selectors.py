"""Label selectors and field selectors: text in, one predicate over an object's labels or fields out.

Grammar as in Kubernetes: `a=b`, `a==b`, `a!=b`, `a in (b,c)`, `a notin (b,c)`, `a`, `!a`, `a>1`, `a<1`, joined by
commas; field selectors know only `=`, `==` and `!=`. A key that is absent satisfies `!=` and `notin`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dlspawner.devcluster.api.errors import bad_request
from dlspawner.devcluster.api.objects.resources import Resource

_KEY = r"(?:[A-Za-z0-9.\-]+/)?[A-Za-z0-9](?:[A-Za-z0-9._\-]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._\-]*[A-Za-z0-9])?)?"
_SET = re.compile(rf"\s*({_KEY})\s+(in|notin)\s*\(([^()]*)\)\s*$")
_EQUALITY = re.compile(rf"\s*({_KEY})\s*(==|=|!=)\s*({_VALUE})\s*$")
_ORDER = re.compile(rf"\s*({_KEY})\s*(>|<)\s*(-?\d+)\s*$")
_EXISTENCE = re.compile(rf"\s*(!?)\s*({_KEY})\s*$")
_LABEL_VALUE = re.compile(rf"{_VALUE}$")
_FIELD = re.compile(r"([^=!]+)(==|=|!=)(.*)$", re.DOTALL)
_COMMA = re.compile(r",(?![^(]*\))")


@dataclass(frozen=True, slots=True)
class Requirement:
    key: str
    operator: str  # in, notin, exists, absent, >, <
    values: frozenset[str] = frozenset()

    def admits(self, attributes: Mapping[str, str]) -> bool:
        value = attributes.get(self.key)
        match self.operator:
            case "in":
                return value is not None and value in self.values
            case "notin":
                return value is None or value not in self.values
            case "exists":
                return value is not None
            case "absent":
                return value is None
            case _:
                return self._ordered(value)

    def _ordered(self, value: str | None) -> bool:
        if value is None or not re.fullmatch(r"-?\d+", value):
            return False
        bound = int(next(iter(self.values)))
        return int(value) > bound if self.operator == ">" else int(value) < bound


Selector = tuple[Requirement, ...]


def matches(selector: Selector, attributes: Mapping[str, str]) -> bool:
    return all(requirement.admits(attributes) for requirement in selector)


def parse_labels(text: str) -> Selector:
    """A label selector in its textual form; the empty one selects everything."""
    if not text.strip():
        return ()
    return tuple(_label_requirement(part, text) for part in _COMMA.split(text))


def _label_requirement(part: str, whole: str) -> Requirement:
    if found := _SET.match(part):
        values = frozenset(value.strip() for value in found[3].split(","))
        if all(_LABEL_VALUE.match(value) for value in values):
            return Requirement(found[1], found[2], values)
    elif found := _EQUALITY.match(part):
        return Requirement(found[1], "notin" if found[2] == "!=" else "in", frozenset({found[3]}))
    elif found := _ORDER.match(part):
        return Requirement(found[1], found[2], frozenset({found[3]}))
    elif found := _EXISTENCE.match(part):
        return Requirement(found[2], "absent" if found[1] else "exists")
    raise bad_request(f'unable to parse requirement: {part.strip()!r} in label selector "{whole}"')


def from_expressions(expressions: Sequence[Mapping[str, object]]) -> Selector:
    """`matchExpressions` of selectors and of node affinity terms (`Gt` and `Lt` are the latter's)."""
    words = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent", "Gt": ">", "Lt": "<"}
    return tuple(
        Requirement(str(term["key"]), words[str(term["operator"])], frozenset(_strings(term.get("values"))))
        for term in expressions
    )


def _strings(values: object) -> list[str]:
    return [str(value) for value in values] if isinstance(values, list) else []


def parse_fields(text: str, resource: Resource) -> Selector:
    """A field selector; only what the kind's row names (and name and namespace) may be asked."""
    known = {"metadata.name", "metadata.namespace", *resource.fields}
    requirements = []
    for part in re.split(r"(?<!\\),", text) if text.strip() else []:
        found = _FIELD.match(part)
        if not found:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        key, operator, value = found[1].strip(), found[2], re.sub(r"\\(.)", r"\1", found[3])
        if key not in known:
            raise bad_request(f'field label not supported: {key} (field selector "{text}")')
        requirements.append(Requirement(key, "notin" if operator == "!=" else "in", frozenset({value})))
    return tuple(requirements)
