"""The administrators' files in their last good version, as rows: every text by its name.

What nodes had before they lost it or went, as rows.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from dlspawner.core.nodes import Node, Taint
from dlspawner.manager.db.tables import config_versions, node_sizes


def read_versions(connection: Connection) -> dict[str, str]:
    """Nothing where no version was ever in use."""
    return {row.name: row.text for row in connection.execute(select(config_versions))}


def write_versions(connection: Connection, texts: Mapping[str, str]) -> None:
    """These, and no others."""
    connection.execute(delete(config_versions))
    connection.execute(insert(config_versions), [{"name": name, "text": text} for name, text in texts.items()])


Size = tuple[Node, datetime | None]  # and since when the node is missed


def read(connection: Connection) -> dict[str, Size]:
    """All that are written down."""
    return {
        row.name: (_read(row.name, json.loads(row.content)), row.since)
        for row in connection.execute(select(node_sizes))
    }


def write(connection: Connection, changed: Mapping[str, Size], gone: Collection[str]) -> None:
    """These are so, and those are not any more."""
    for name in {*changed, *gone}:
        connection.execute(delete(node_sizes).where(node_sizes.c.name == name))
    rows = [{"name": name, "content": _written(node), "since": since} for name, (node, since) in changed.items()]
    if rows:
        connection.execute(insert(node_sizes), rows)


def _written(node: Node) -> str:
    taints = [asdict(taint) for taint in node.taints]
    return json.dumps(
        {
            "gpus": node.gpus,
            "cpu_milli": node.cpu_milli,
            "memory_bytes": node.memory_bytes,
            "labels": node.labels,
            "taints": taints,
        }
    )


def _read(name: str, content: Mapping[str, Any]) -> Node:
    return Node(
        name,
        gpus=tuple((resource, milli) for resource, milli in content["gpus"]),
        cpu_milli=content["cpu_milli"],
        memory_bytes=content["memory_bytes"],
        labels=tuple((key, value) for key, value in content["labels"]),
        taints=tuple(Taint(**taint) for taint in content["taints"]),
    )
