"""The administrators' files in their last good version, as rows: every text by its name."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, delete, insert, select

from dlspawner.manager.db.tables import config_versions


def read_versions(connection: Connection) -> dict[str, str]:
    """Nothing where no version was ever in use."""
    return {row.name: row.text for row in connection.execute(select(config_versions))}


def write_versions(connection: Connection, texts: Mapping[str, str]) -> None:
    """These, and no others."""
    connection.execute(delete(config_versions))
    connection.execute(insert(config_versions), [{"name": name, "text": text} for name, text in texts.items()])
