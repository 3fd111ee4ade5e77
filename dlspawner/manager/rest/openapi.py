"""``openapi.json``: the description of the REST resources, made of the table of operations."""

from __future__ import annotations

import re
from http import HTTPStatus
from importlib.metadata import version

from dlspawner.manager.rest.operations import OPERATIONS, PLACES, Operation, Parameter
from dlspawner.manager.rest.schemas import SCHEMAS, Schema, ref
from dlspawner.manager.web import JsonHandler

# What any resource may answer: nobody, without the right, no decisions here, not now.
_ALWAYS = (401, 403, 501, 503)
_PROBLEM = "application/problem+json"
_ABOUT = """Jobs, quota and queue of dlspawner. Every resource needs a token of the Hub's token page; README.md of
dlspawner/manager says who may do what."""


class OpenApiHandler(JsonHandler):
    """The description, for anybody: it holds nothing of this cluster."""

    def get(self) -> None:
        self.reply(document(f"{self.manager.service.prefix}api"))


def document(address: str) -> dict[str, object]:
    """The description of resources that are at this address."""
    paths: dict[str, dict[str, object]] = {}
    for one in OPERATIONS:
        paths.setdefault(f"/{one.path}", {})[one.method.lower()] = _operation(one)
    return {
        "openapi": "3.1.0",
        "info": {"title": "dlspawner", "version": version("dlspawner"), "description": _ABOUT},
        "servers": [{"url": address}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": dict(SCHEMAS),
            "securitySchemes": {
                "token": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "token …, or Bearer …, with a token of the Hub's token page.",
                }
            },
        },
    }


def _operation(one: Operation) -> dict[str, object]:
    told: dict[str, object] = {
        "operationId": one.name,
        "summary": one.summary,
        "responses": {
            **{str(status): _answer(status, one.kind, schema) for status, schema in one.answers.items()},
            **{str(status): _answer(status, _PROBLEM, ref("Problem")) for status in sorted({*_ALWAYS, *one.problems})},
        },
    }
    parameters = [_place(name) for name in re.findall(r"{(\w+)}", one.path)] + [_parameter(p) for p in one.parameters]
    if parameters:
        told["parameters"] = parameters
    if one.body is not None:
        told["requestBody"] = {"required": True, "content": {"application/json": {"schema": one.body}}}
    return told


def _answer(status: int, kind: str, schema: Schema | None) -> dict[str, object]:
    told: dict[str, object] = {"description": HTTPStatus(status).phrase}
    return told if schema is None else {**told, "content": {kind: {"schema": schema}}}


def _place(name: str) -> dict[str, object]:
    return {"name": name, "in": "path", "required": True, "schema": PLACES[name]}


def _parameter(one: Parameter) -> dict[str, object]:
    schema = {"type": "array", "items": one.schema} if one.repeats else one.schema
    return {"name": one.name, "in": one.where, "description": one.help, "schema": schema}
