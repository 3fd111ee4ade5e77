"""The answers of the REST resources against openapi.json: the helpers that ask give every answer to `check`."""

from __future__ import annotations

import json
import re
from typing import Any

from jsonschema import Draft202012Validator

from dlspawner.manager.http.api.openapi import OPERATIONS, document

DESCRIPTION = document("")


def operation_at(method: str, path: str) -> dict[str, Any] | None:
    """The described operation at a path below the service's prefix; None where the description has none."""
    for one in OPERATIONS:
        pattern = re.sub(r"\{\w+\}", "[^/]*", f"api/{one.path}".replace(".", r"\."))
        if one.method == method and re.fullmatch(pattern, path.partition("?")[0]):
            return dict(DESCRIPTION["paths"][f"/{one.path}"][method.lower()])
    return None


def check(method: str, path: str, status: int, kind: str, body: str) -> None:
    """Fails on a status, a type or a field that the description does not have for this operation."""
    operation = operation_at(method, path)
    if operation is None:
        return
    said = f"{method} {path}: {status} {kind} {body[:1000]}"
    assert str(status) in operation["responses"], said
    content = operation["responses"][str(status)].get("content")
    if content is None:
        assert body == "", said
        return
    kind = kind.partition(";")[0]
    assert kind in content, said
    if kind.endswith("json"):
        schema = {**content[kind]["schema"], "components": DESCRIPTION["components"]}
        Draft202012Validator(schema).validate(json.loads(body))
        assert "+00:00" not in body, f"{said}: times end in Z"
