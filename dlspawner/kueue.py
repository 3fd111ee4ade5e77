"""``dlspawner kueue apply``: Kueue's flavors, queues and priority classes, made of cluster.yaml and teams.yaml.

Objects of a name that this command has not made are left alone, and none is deleted: a queue may have jobs.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from dlspawner import settings
from dlspawner.clients.kubernetes import KubernetesClient, KubernetesError, ObjectNotFound, ResourceKind
from dlspawner.core.config import SchedulerName
from dlspawner.core.schedulers.engine import EngineObject
from dlspawner.core.schedulers.kueue import MANAGED, queue_objects
from dlspawner.errors import InvalidConfiguration

NOT_KUEUE = "cluster.yaml has another scheduler: write scheduler: {name: kueue} there."
NO_QUOTA = "teams.yaml has no quota, so there is nothing to share out: give each team its quota."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments beside those of the files."""
    parser.add_argument("action", choices=["apply"], help="create the objects, or change them")
    parser.add_argument(
        *("--namespace", "-n"), action="append", default=[], help="of jobs; once more for that of special permissions"
    )
    parser.add_argument("--kubeconfig", type=Path, help="default: $KUBECONFIG, or the pod's service account")
    parser.add_argument("--dry-run", action="store_true", help="only print what would be applied, as YAML")


def main(given: argparse.Namespace) -> int:
    """Returns exit code 0 if Kueue has all objects, 1 with a sentence if not."""
    try:
        found = settings.load(given.templates, given.cluster, given.teams)
    except InvalidConfiguration as invalid:
        print(*invalid.problems, sep="\n", file=sys.stderr)
        return 1
    for wrong, sentence in (
        (found.cluster.scheduler.name is not SchedulerName.KUEUE, NOT_KUEUE),
        (not found.teams.has_quota, NO_QUOTA),
        (not given.namespace, "Name the namespace of the jobs: --namespace NAME."),
    ):
        if wrong:
            print(sentence, file=sys.stderr)
            return 1
    objects = queue_objects(found.cluster, found.teams, given.namespace)
    if given.dry_run:
        print(yaml.safe_dump_all((copy.deepcopy(one.manifest) for one in objects), sort_keys=False), end="")
        return 0
    try:
        return asyncio.run(_apply(objects, given.kubeconfig))
    except KubernetesError as problem:
        print(f"Kueue could not be told: {problem}", file=sys.stderr)
        return 1


async def _apply(objects: Sequence[EngineObject], kubeconfig: Path | None) -> int:
    async with await KubernetesClient.connect(kubeconfig) as client:
        for one in objects:
            namespace = one.manifest["metadata"].get("namespace")
            title = f"{one.manifest['kind']} {f'{namespace}/' if namespace else ''}{one.name}"
            print(f"{title}: {await _apply_one(client, one, namespace)}")
    return 0


async def _apply_one(client: KubernetesClient, wanted: EngineObject, namespace: str | None) -> str:
    kind = ResourceKind(wanted.kind.group_version, wanted.kind.plural, wanted.kind.namespaced)
    try:
        there = await client.get(kind, wanted.name, namespace)
    except ObjectNotFound:
        await client.create(kind, wanted.manifest, namespace)
        return "made"
    if not MANAGED.items() <= (there["metadata"].get("labels") or {}).items():
        return "left alone, it was made by other means"
    changed = await client.patch(kind, wanted.name, wanted.manifest, namespace)
    same = changed["metadata"]["generation"] == there["metadata"]["generation"]
    return "as it was" if same else "changed"
