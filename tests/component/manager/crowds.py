"""A crowd that wants more GPUs than there are: who waits, when everything has settled, and that all have their turn."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import requests

from dlspawner.core.link import derive_hub_token
from tests.component.manager.quota import GPUS, QuotaHub
from tests.e2e.people import wait_for

# Short ones, so that what is left behind is gone within the test.
SETTINGS = (
    "--Manager.lease_seconds=3",
    "--Manager.reservation_seconds=30",
)


def places(hub: QuotaHub, users: list[str]) -> dict[str, int]:
    """The places that the Manager tells the Hub; none while it does not decide."""
    headers = {"Authorization": f"token {derive_hub_token('manager-token')}"}
    found = {}
    for user in users:
        answer = requests.get(
            f"{hub.manager_url()}/services/jobs/api/internal/users/{user}/waiting", headers=headers, timeout=30
        )
        if answer.ok:
            found.update((user, int(one["position"])) for one in answer.json()["waiting"])
    return found


def live(hub: QuotaHub) -> list[tuple[str, ...]]:
    """The Manager's jobs that have not ended: user, state and pod."""
    return hub.rows("SELECT user_name, state, pod_uid FROM jobs WHERE state <> 'ended'")


def settled(hub: QuotaHub) -> bool:
    """Everything that is held is held by a pod, every pod is a server's, every server has its pod."""
    servers, jobs = hub.servers(), live(hub)
    held = [(user, state, pod_uid) for user, state, pod_uid in jobs if state != "queued"]
    pods = hub.kubectl("get", "pods", "-o", "name").split()
    expected = sorted(f"pod/jupyter-{name.rstrip('/')}" for name in servers)
    return (
        all(state == "ready" for state in servers.values())
        and sorted(pods) == expected
        and all(pod_uid != "None" for _, _, pod_uid in held)
        and len(held) == len(pods) == min(GPUS, len(jobs))
    )


def settle(hub: QuotaHub, users: list[str]) -> None:
    """Until all of them hold or wait, and everything has settled.

    Whoever had no answer, or was let in by something that was killed just then, asks again. Who waits, or has a start
    or stop on its way, is not disturbed: two hundred who ask without a rest keep a Hub on a busy machine from all else.
    """

    def all_ask() -> bool:
        calm = settled(hub)  # before it is known who is missing: a start that was lost ends at some moment
        known = {user for user, _, _ in live(hub)} | {name.rstrip("/") for name in hub.servers()}
        missing = [user for user in users if user not in known]
        if missing:
            hub.storm(missing, gpus=1)
        time.sleep(1)
        return calm and not missing

    try:
        wait_for(all_ask, "everything has settled", 300)
    except AssertionError:
        print(hub.servers(), live(hub), hub.kubectl("get", "pods"), sep="\n")  # pytest shows it with the failure
        raise


def serve(hub: QuotaHub, users: list[str]) -> None:
    """Whoever has a server gives it back, until everybody has had one and nothing is left."""
    served: set[str] = set()

    def everybody() -> bool:
        ready = [name.rstrip("/") for name in hub.ready()]
        with ThreadPoolExecutor(GPUS) as pool:
            list(pool.map(lambda user: hub.api("DELETE", f"/users/{user}/server"), ready))
        served.update(ready)
        return not live(hub) and not hub.servers()

    wait_for(everybody, "everybody has had a server", 480)
    assert served == set(users)
    assert not hub.held()


class Killer(threading.Thread):
    """Kills a process of ours at random moments, and starts it again."""

    def __init__(self, hub: QuotaHub, name: str, seed: int) -> None:
        super().__init__(daemon=True)
        self._hub, self._name, self._chance = hub, name, random.Random(seed)
        self._enough = threading.Event()
        self.kills = 0
        self.failed: BaseException | None = None

    def run(self) -> None:
        start = {"manager": self._hub.start_manager, "hub": self._hub.start_hub}[self._name]
        try:
            while not self._enough.wait(self._chance.uniform(0.5, 4)):
                self._hub.kill(self._name)
                self.kills += 1
                start()
        except BaseException as failed:
            self.failed = failed
            raise

    def __enter__(self) -> Killer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self.join(240)
        assert self.failed is None
