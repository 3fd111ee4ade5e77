"""Engines underneath: schedulers of the cluster that count quotas, order jobs or place gangs instead of this product.

One module per engine, and `engine` with what an engine is. No other module knows an engine's keys.
"""

from __future__ import annotations

from dlspawner.core.config import SchedulerConfig, SchedulerName
from dlspawner.core.schedulers.coscheduling import COSCHEDULING
from dlspawner.core.schedulers.engine import Engine, ObjectKind
from dlspawner.core.schedulers.gang import GANG
from dlspawner.core.schedulers.hived import HIVED
from dlspawner.core.schedulers.kai import KAI
from dlspawner.core.schedulers.kube_batch import KUBE_BATCH
from dlspawner.core.schedulers.kueue import Kueue
from dlspawner.core.schedulers.volcano import VOLCANO

_ENGINES: dict[SchedulerName, Engine] = {
    SchedulerName.KUEUE: Kueue(),
    **{engine.name: engine for engine in (VOLCANO, COSCHEDULING, KUBE_BATCH, KAI, HIVED, GANG)},
}


def find_engine(scheduler: SchedulerConfig) -> Engine | None:
    """Returns the engine of this configuration; ``None`` for the native queue."""
    return _ENGINES.get(scheduler.name)


def unused_kinds(scheduler: SchedulerConfig) -> frozenset[ObjectKind]:
    """Returns the kinds of the objects that jobs have in the other engines."""
    own = _ENGINES.get(scheduler.name)
    kinds = {kind for engine in _ENGINES.values() for kind in engine.kinds if kind.namespaced}
    return frozenset(kinds.difference(own.kinds if own else ()))
