"""Events of pods: which ones wait for later ones, and that none is lost or overtaken by an earlier one."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dlspawner.clients.kubernetes import PODS, WatchEvent
from dlspawner.core.job import JobState
from dlspawner.manager.cluster.reconciler import Reconciler
from dlspawner.manager.db.store import DatabaseUnavailable
from dlspawner.manager.model.namespaces import JobNamespaces
from tests.component.manager.manager_harness import NAMESPACE, ManagerHarness, until, wants

LONG = 3600.0  # seconds: no test waits that long


class Recording(Reconciler):
    """Records the events that are processed; ``failures`` are raised first."""

    def __init__(self) -> None:
        store: Any = SimpleNamespace(records={})
        cluster: Any = None
        super().__init__(store, cluster, cluster, JobNamespaces(NAMESPACE, ""), lambda: datetime.now(UTC))
        self.processed: list[tuple[str, str, int]] = []
        self.failures: list[Exception] = []

    async def _process(self, change: WatchEvent) -> None:
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop()
        self.processed.append((change.type, change.object["metadata"]["uid"], change.object["version"]))


def change(kind: Any, uid: str, version: int) -> WatchEvent:
    return WatchEvent(kind, {"metadata": {"uid": uid}, "version": version})


_CHANGES = st.lists(
    st.tuples(st.sampled_from(["MODIFIED", "DELETED"]), st.sampled_from("abc"), st.booleans()), max_size=30
)


@settings(max_examples=50)
@given(told=_CHANGES)
def test_latest_event_is_processed_after_earlier_ones_and_before_deletion(told: list[tuple[str, str, bool]]) -> None:
    async def process_all() -> list[tuple[str, str, int]]:
        reconciler = Recording()
        for version, (kind, uid, pause) in enumerate(told, 1):
            reconciler._put(change(kind, uid, version))
            if pause:
                await asyncio.gather(*map(reconciler.reconcile_pod, reconciler.due_pods()))
        await asyncio.gather(*map(reconciler.reconcile_pod, reconciler.due_pods()))
        return reconciler.processed

    processed = asyncio.run(process_all())

    for pod in "abc":
        seen = [(kind, version) for version, (kind, uid, _) in enumerate(told, 1) if uid == pod]
        done = [(kind, version) for kind, uid, version in processed if uid == pod]
        lasts = [one for one, after in pairwise([*seen, ("", 0)]) if one[0] != after[0]]
        assert done == sorted(done, key=lambda one: one[1])
        assert set(lasts) <= set(done) <= set(seen)


async def test_events_stay_unprocessed_while_the_database_is_unavailable() -> None:
    reconciler = Recording()
    reconciler.failures.append(DatabaseUnavailable("away"))
    reconciler._put(change("MODIFIED", "a", 1))
    await asyncio.gather(reconciler.reconcile_pod("a"), return_exceptions=True)
    reconciler._put(change("DELETED", "a", 2))
    await reconciler.reconcile_pod("a")

    assert reconciler.processed == [("MODIFIED", "a", 1), ("DELETED", "a", 2)]


async def test_deletion_of_a_pod_in_its_debounce_ends_its_job_at_once(harness: ManagerHarness) -> None:
    harness.debounce_seconds = LONG
    alice = wants()
    async with harness.manager() as leader:
        await leader.ask(alice)
        pod = await harness.make_pod(alice)
        await harness.cluster.delete(PODS, pod["metadata"]["name"], NAMESPACE, grace=0)
        await until(lambda: leader.state(alice) is JobState.ENDED, "it has ended")

        assert (await leader.reasons(alice))[0] == "admitted"
        assert (await leader.reasons(alice))[-1] == "removed"


async def test_gate_of_a_pod_that_has_gone_meanwhile_is_left_alone() -> None:
    reconciler = Recording()
    reconciler.store.gated = {}
    await reconciler.open_gate("gone")
