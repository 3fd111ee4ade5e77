"""``dlspawner backup`` and ``dlspawner restore``: what the product itself keeps, in one directory of mode 0700.

That is the databases of Hub and Manager, and the secrets: the Secrets of a namespace, or the files of
``dlspawner local`` (tokens, ports, cookie secret, the gateway's keys). Homes and pods are the cluster's.

* Each database is one snapshot, taken while everything runs: SQLite by its backup API, PostgreSQL by ``pg_dump``. The
  Hub's is the first, so that the Manager's knows the uid of every user in it.
* ``backup.json`` is written last: a directory without it is no backup.
* A restore examines everything before any writing. It replaces nothing: a database with tables, a file or a Secret that
  exists ends it, and so does a schema that is newer than the installed code.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import URL, create_engine, inspect, make_url, text
from sqlalchemy.exc import SQLAlchemyError

from dlspawner import bootstrap
from dlspawner.clients import kubernetes
from dlspawner.local.state import CannotRun, lock, write_private
from dlspawner.manager.db.engine import MIGRATIONS

INDEX = "backup.json"
DATABASES = ("hub", "manager")
SECRETS = (*bootstrap.wanted(login=True, database_server="server"), "hub")  # the last is zero-to-jupyterhub's
LOCAL_FILES = ("ports.json", "secrets.json", "hub_cookie_secret", "gateway")


class BackupRefused(Exception):
    """Nothing was changed; the message says why."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIR", help="the directory of the backup")
    parser.add_argument("--state", type=Path, help="the state of `dlspawner local`: both databases and its secrets")
    for name in DATABASES:
        variable = f"DLSPAWNER_{name.upper()}_DB_URL"
        parser.add_argument(f"--{name}-db", metavar="URL", help=f"the {name.title()}'s database (default: ${variable})")
    parser.add_argument("--secrets", metavar="NAMESPACE", help="the product's Secrets in this namespace of Kubernetes")
    parser.add_argument("--kubeconfig", type=Path, help="default: $KUBECONFIG, or the pod's service account")


def main(given: argparse.Namespace) -> int:
    """Returns exit code 0 after a complete backup or restore, 1 with a sentence otherwise."""
    try:
        done = backup(given) if given.command == "backup" else restore(given)
    except (BackupRefused, CannotRun, kubernetes.KubernetesError, SQLAlchemyError, sqlite3.Error, OSError) as error:
        print(f"{given.command}: {error}", file=sys.stderr)
        return 1
    print(f"{given.command}: {', '.join(done)}")
    return 0


def backup(given: argparse.Namespace) -> list[str]:
    """Makes the directory, which must not exist. Returns what is in it."""
    places, into = _databases(given), given.directory
    if not places and not given.secrets:
        raise BackupRefused("say what to back up: --state, --hub-db, --manager-db or --secrets.")
    try:
        into.mkdir(mode=0o700)
    except FileExistsError:
        raise BackupRefused(f"{into} exists already: name a new directory for each backup.") from None
    index: dict[str, Any] = {"version": version("dlspawner"), "made": datetime.now(UTC).isoformat(timespec="seconds")}
    index["databases"] = {name: {"backend": url.get_backend_name()} for name, url in places.items()}
    for name, url in places.items():
        local = _dump(url, into / name)
        index["databases"][name]["schema"] = _schema(local)
    index["files"] = [name for name in LOCAL_FILES if given.state and (given.state / name).exists()]
    for name in index["files"]:
        _copy(given.state / name, into / name)
    index["secrets"] = []
    if given.secrets:
        kept = asyncio.run(_with_cluster(given, lambda client: _read_secrets(client, given.secrets)))
        write_private(into / "secrets-of-kubernetes.json", json.dumps(kept, indent=1))
        index["secrets"] = [one["metadata"]["name"] for one in kept]
    write_private(into / INDEX, json.dumps(index, indent=1))
    return _told(index)


def restore(given: argparse.Namespace) -> list[str]:
    """Puts everything of the backup in its place, which must be empty. Returns what was restored."""
    source = given.directory
    try:
        index = json.loads((source / INDEX).read_text())
    except FileNotFoundError:
        raise BackupRefused(f"{source} is no complete backup: it has no {INDEX}.") from None
    places = _databases(given)
    left = [f"--{name}-db" for name in index["databases"] if name not in places]
    left += [option for option, key in (("--state", "files"), ("--secrets", "secrets")) if index[key]]
    if left := [option for option in left if not getattr(given, option[2:].replace("-", "_"))]:
        raise BackupRefused(f"the backup has more than you name; say where it goes: {', '.join(left)}.")
    held = None
    if given.state:
        given.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        held = lock(given.state)
    try:
        for name, url in places.items():
            _check(name, url, index)
        for name in index["files"]:
            if (given.state / name).exists():
                raise BackupRefused(f"{given.state / name} exists. A restore replaces nothing: move it away first.")
        if given.secrets:
            kept = json.loads((source / "secrets-of-kubernetes.json").read_text())
            asyncio.run(_with_cluster(given, lambda client: _make_secrets(client, given.secrets, kept)))
        for name in index["files"]:
            _copy(source / name, given.state / name)
        for name, url in places.items():
            _load(url, source / name)
    finally:
        if held is not None:
            os.close(held)
    return _told(index)


def _told(index: Mapping[str, Any]) -> list[str]:
    databases = [f"database {name} (schema {', '.join(one['schema'])})" for name, one in index["databases"].items()]
    return [*databases, *(f"file {name}" for name in index["files"]), *(f"secret {name}" for name in index["secrets"])]


def _databases(given: argparse.Namespace) -> dict[str, URL]:
    """Returns the databases in the order of their snapshots."""
    found = {}
    for name in DATABASES:
        local = (
            f"sqlite:///{given.state / name}.sqlite"
            if given.state
            else os.environ.get(f"DLSPAWNER_{name.upper()}_DB_URL")
        )
        if url := getattr(given, f"{name}_db") or local:
            found[name] = make_url(url)
    return found


def _dump(url: URL, into: Path) -> URL:
    """Returns where the schema can be read: in the copy of SQLite, in PostgreSQL itself."""
    os.close(os.open(into, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    if url.get_backend_name() == "sqlite":
        if not Path(str(url.database)).is_file():
            raise BackupRefused(f"there is no database {url.database}.")
        source = f"{Path(str(url.database)).resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(source, uri=True)) as live, closing(sqlite3.connect(into)) as copy:
            live.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE").close()  # one file
        return make_url(f"sqlite:///{into}")
    _postgresql(url, "pg_dump", "--format=custom", f"--file={into}")
    return url


def _load(url: URL, source: Path) -> None:
    if url.get_backend_name() == "sqlite":
        _copy(source, Path(str(url.database)))
    else:
        _postgresql(url, "pg_restore", "--no-owner", "--no-privileges", "--single-transaction", str(source))


def _postgresql(url: URL, program: str, *more: str) -> None:
    """Runs one of PostgreSQL's programs, whose command line shows no password."""
    if shutil.which(program) is None:
        raise BackupRefused(f"{program} is missing: install PostgreSQL's client programs, of the server's version.")
    shown = url._replace(drivername="postgresql", password=None).render_as_string()
    env = {**os.environ, **({"PGPASSWORD": str(url.password)} if url.password else {})}
    done = subprocess.run([program, f"--dbname={shown}", *more], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BackupRefused(f"{program} failed: {done.stderr.strip()}")


def _schema(url: URL) -> list[str]:
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            return sorted(connection.scalars(text("SELECT version_num FROM alembic_version")))
    finally:
        engine.dispose()


def _check(name: str, url: URL, index: Mapping[str, Any]) -> None:
    """Raises BackupRefused if a database of the backup does not fit the code, or its place."""
    known = _known(name)
    kept, shown = index["databases"].get(name), url.render_as_string()
    if kept is None or kept["backend"] != url.get_backend_name():
        raise BackupRefused(f"the backup has no {url.get_backend_name()} database of the {name.title()} for {shown}.")
    if newer := sorted(set(kept["schema"]) - known):
        raise BackupRefused(
            f"the backup's database of the {name.title()} has the schema {', '.join(newer)}, which is newer than this "
            f"version: install dlspawner {index['version']} first, with its JupyterHub."
        )
    if url.get_backend_name() == "sqlite":
        if Path(str(url.database)).exists():
            raise BackupRefused(f"{url.database} exists. A restore replaces nothing: move it away first.")
        return
    engine = create_engine(url)
    try:
        if inspect(engine).get_table_names():
            raise BackupRefused(f"{shown} has tables. A restore replaces nothing: make an empty database first.")
    finally:
        engine.dispose()


def _known(name: str) -> set[str]:
    """Returns all revisions of the schema that the installed code knows."""
    hub = find_spec("jupyterhub")
    assert hub is not None and hub.origin is not None  # noqa: S101, PT018 — a requirement of this package
    config = Config()
    config.set_main_option(
        "script_location", str(MIGRATIONS if name == "manager" else Path(hub.origin).with_name("alembic"))
    )
    return {one.revision for one in ScriptDirectory.from_config(config).walk_revisions()}


def _copy(source: Path, target: Path) -> None:
    """Copies a file or a directory, readable for its owner alone."""
    if source.is_dir():
        target.mkdir(mode=0o700)
        for one in sorted(source.iterdir()):
            _copy(one, target / one.name)
    else:
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(source.read_bytes())


async def _with_cluster(given: argparse.Namespace, do: Callable[[kubernetes.KubernetesClient], Any]) -> Any:
    async with await kubernetes.KubernetesClient.connect(given.kubeconfig) as client:
        return await do(client)


async def _read_secrets(client: kubernetes.KubernetesClient, namespace: str) -> list[kubernetes.Object]:
    """Returns the product's Secrets, with the labels and annotations by which Helm knows its own."""
    found = [one for one in await client.list(kubernetes.SECRETS, namespace) if one["metadata"]["name"] in SECRETS]
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": one.get("type", "Opaque"),
            "metadata": {
                key: one["metadata"][key] for key in ("name", "labels", "annotations") if key in one["metadata"]
            },
            "data": one.get("data", {}),
        }
        for one in found
    ]


async def _make_secrets(client: kubernetes.KubernetesClient, namespace: str, kept: list[kubernetes.Object]) -> None:
    present = {one["metadata"]["name"] for one in await client.list(kubernetes.SECRETS, namespace)}
    if there := sorted(present & {one["metadata"]["name"] for one in kept}):
        raise BackupRefused(f"the Secrets {', '.join(there)} exist in {namespace}. A restore replaces nothing.")
    for one in kept:
        await client.create(kubernetes.SECRETS, one, namespace)
