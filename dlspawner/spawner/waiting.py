"""Waiting for a pod to run, and knowing meanwhile what holds it up.

The watch wakes us when the pod changes. Some causes never change the pod: a volume that cannot be mounted, a claim that
finds no storage, an image that is being pulled. When a pod makes no progress for a moment, and then less and less
often, we look closer: the pod itself, for a watch may be silent without anybody's knowledge (a connection that a
firewall has forgotten), and one list of this pod's events, or of its claims'. A healthy start never asks.

Refused: KubeSpawner's reflector of events (``events_enabled``). It keeps every event of the namespace in the Hub's
memory to use those of one pod, and a busy namespace has more events than pods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain, repeat
from typing import Any

from dlspawner.core import naming, text
from dlspawner.core.decisions import JOB_ENDED
from dlspawner.spawner import trouble, verdict
from dlspawner.spawner.pods import PodRequests, uid
from dlspawner.spawner.progress import ImagePull
from dlspawner.spawner.refusal import StartRefused
from dlspawner.spawner.requests import ApiError
from dlspawner.spawner.trouble import StartProblem
from dlspawner.spawner.verdict import PodDict

# JupyterHub gives a start up after start_timeout without a word of ours: we are so much earlier, to give the reason.
_EARLIER_SECONDS = 5.0
_LAST_LOOK_SECONDS = 1.0


def look_pauses() -> Iterator[float]:
    """Seconds without progress before each closer look."""
    return chain((1.5, 2, 4, 8, 15), repeat(30))


def deadline_of(start_timeout: float) -> float:
    """How long a start may take before we end it."""
    return start_timeout - min(_EARLIER_SECONDS, start_timeout / 10)


def last_moment_of(start_timeout: float) -> float:
    """How long everything together may take, so that nothing that is late by itself is overtaken by JupyterHub."""
    return start_timeout - (start_timeout - deadline_of(start_timeout)) / 4


@dataclass(slots=True)
class StartMonitor:
    """One start. ``note`` says what holds it up, ``pull`` what is fetched; the watch wakes whoever shows them."""

    pods: PodRequests
    runs: Callable[[PodDict | None], bool]
    since: float  # of the event loop's clock, as all moments here
    seconds: float
    own: frozenset[str] = frozenset()  # Secrets that the start makes after the pod
    note: str | None = None
    pull: ImagePull | None = None
    _trouble: StartProblem | None = None
    _troubled_since: float = 0.0

    async def until_running(self, created: PodDict) -> None:
        """Return when the pod runs; Refused, with the reason, when it will not."""
        seen, pod, closer = False, None, None
        ahead = look_pauses()
        look_at = self._look_at(next(ahead))
        while True:
            latest = self._latest(created)
            seen = seen or uid(self._gone) == uid(created)
            if latest is not None and _version(latest) != _version(pod):
                # The watch may be behind the creation; once it has seen the pod, none is a pod that was removed.
                pod, seen, closer = latest, True, None
                ahead = look_pauses()
                look_at = self._look_at(next(ahead))
            if seen:
                self._judge(latest, created)
                self._consider(trouble.of_pod(latest, self.pods.gpus), closer)
                if self.runs(latest):
                    return
            self._give_up_in_time(latest)
            if await self._changed(look_at):
                continue
            if _now() >= look_at:
                closer = await self._look(pod, closer)
                look_at = self._look_at(next(ahead))

    def _look_at(self, pause: float) -> float:
        """When to look closer next; nothing is given up without a last look."""
        last = self.since + self.seconds - min(_LAST_LOOK_SECONDS, self.seconds / 4)
        return min(_now() + pause, last) if _now() < last else _now() + pause

    def _latest(self, created: PodDict) -> PodDict | None:
        latest: PodDict | None = self.pods.watch.pods.get(self.pods.key)
        return latest if uid(latest) == uid(created) else None

    @property
    def _gone(self) -> PodDict | None:
        """What was last seen of the pod of our name that went last."""
        found: PodDict | None = self.pods.watch.gone.get(self.pods.key)
        return found

    def _judge(self, pod: PodDict | None, created: PodDict) -> None:
        last = self._gone
        judged = verdict.evaluate(pod) if pod else verdict.evaluate_gone(last if uid(last) == uid(created) else None)
        if isinstance(judged, verdict.Terminated):
            raise StartRefused(judged.reason, reason="job-failed", status=JOB_ENDED)

    def _consider(self, told: StartProblem | None, closer: StartProblem | ImagePull | None) -> None:
        """Take note of what the pod itself says, and of what the last closer look found."""
        found = closer if isinstance(closer, StartProblem) else told
        if found is None or not found.is_same(self._trouble):
            self._troubled_since = _now()
            if found is not None:
                self.pods.log.info(
                    "pod=%s is held up: %s (%s)", self.pods.key, found.cause, text.quoted(found.detail, 500)
                )
        self._trouble = found
        note, pull = found.sentence if found else None, closer if isinstance(closer, ImagePull) else None
        if (note, pull) != (self.note, self.pull):
            self.note, self.pull = note, pull
            self.pods.watch.wake(self.pods.key)

    def _give_up_in_time(self, pod: PodDict | None) -> None:
        now, found = _now(), self._trouble
        if found is not None and found.tolerance is not None and now >= self._troubled_since + found.tolerance:
            raise StartRefused(found.sentence, reason="job-failed")
        if now >= self.since + self.seconds:
            raise self.given_up(pod)

    def given_up(self, pod: PodDict | None) -> StartRefused:
        """Why the start ends when its time is over."""
        found = self._trouble or trouble.of_nothing(pod, self.pull)
        return StartRefused(found.given_up(_now() - self.since), reason="start-timeout")

    async def _changed(self, look_at: float) -> bool:
        """Wait for a change of the pod, but not beyond the moment when something else is due."""
        until = min(look_at, self.since + self.seconds)
        if self._trouble is not None and self._trouble.tolerance is not None:
            until = min(until, self._troubled_since + self._trouble.tolerance)
        try:
            async with asyncio.timeout_at(until):
                await self.pods.watch.changed(self.pods.key)
        except TimeoutError:
            return False
        return True

    async def _look(
        self, pod: PodDict | None, known: StartProblem | ImagePull | None
    ) -> StartProblem | ImagePull | None:
        """What the pod does not say itself: a trouble, or the image that is being pulled.

        Never fails, and is never late: what was known before stands then.
        """
        try:
            async with asyncio.timeout_at(self.since + self.seconds):
                return await self._asked(pod, known)
        except (ApiError, TimeoutError) as problem:
            said = "no time is left" if isinstance(problem, TimeoutError) else str(problem)
            self.pods.log.warning("pod=%s cannot see why it waits: %s", self.pods.key, said)
        return known

    async def _asked(
        self, pod: PodDict | None, known: StartProblem | ImagePull | None
    ) -> StartProblem | ImagePull | None:
        news = await self._read()
        # The end of a pull changes the pod: until then there is nothing more to learn.
        if pod is None or _version(news) not in (None, _version(pod)) or isinstance(known, ImagePull):
            return known
        if (pod.get("spec") or {}).get("nodeName"):
            events = await self.pods.events("Pod", pod["metadata"]["name"], uid(pod))
            own = self.own | {naming.ssh_object(self.pods.name)}
            return trouble.of_events(events, own) or self._as_seen_here(trouble.pulled_image(events))
        return await self._claims(pod) if trouble.waits_for_claims(trouble.of_pod(pod)) else None

    async def _read(self) -> PodDict | None:
        """The pod as it is now, which the watch learns too; a silent one would tell nobody."""
        try:
            news = await self.pods.requests.once(self.pods.api.read_namespaced_pod, self.pods.name, self.pods.namespace)
        except ApiError as problem:
            if problem.status == 404:
                return None  # the watch tells what its end was
            raise
        self.pods.watch.learn(news)
        return news

    def _as_seen_here(self, pull: ImagePull | None) -> ImagePull | None:
        """Nothing was pulled before the start or after now, whatever another machine's clock says."""
        if pull is None:
            return None
        now = datetime.now(UTC)
        began = now - timedelta(seconds=_now() - self.since)
        return ImagePull(pull.image, min(max(pull.since, began), now))

    async def _claims(self, pod: PodDict) -> StartProblem | None:
        for name in trouble.claim_names(pod):
            claim = await self.pods.claim(name)
            events: list[Any] = await self.pods.events("PersistentVolumeClaim", name, uid(claim)) if claim else []
            found = trouble.of_claim(name, claim, events)
            if found is not None:
                return found
        return None


def _version(pod: PodDict | None) -> str | None:
    """Two lists give the same pod as two objects."""
    return pod["metadata"].get("resourceVersion", "") if pod else None


def _now() -> float:
    return asyncio.get_running_loop().time()
