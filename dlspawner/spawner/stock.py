"""KubeSpawner's own requests: claims, namespaces, Secret and Service of internal SSL and services_enabled, deletions.

KubeSpawner retries them when they time out and for nothing else, logs whole manifests with the server's token when they
fail, and lets the client's exceptions, headers included, reach people. Here they go the way of all others (`requests`);
what each of them means stays KubeSpawner's. They return when they are done, so KubeSpawner's own loops around them run
once.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from kubespawner.objects import make_namespace

from dlspawner.spawner.profiles import ProfileSpawner
from dlspawner.spawner.refusal import StartRefused
from dlspawner.spawner.requests import ApiError, Requests


class StockRequests(ProfileSpawner):
    """A KubeSpawner whose requests survive bad days. ``requests`` is the subclass's."""

    @property
    def requests(self) -> Requests:
        raise NotImplementedError

    async def _ensure_namespace(self) -> None:
        namespace = make_namespace(
            self.namespace,
            labels=self._expand_all(self.user_namespace_labels),
            annotations=self._expand_all(self.user_namespace_annotations),
        )
        with suppress(ApiError):  # it is there
            await self.requests.send("namespace", self.api.create_namespace, namespace, expected=(409,))

    async def _make_create_pvc_request(self, pvc: Any, request_timeout: float) -> bool:
        create = self.api.create_namespaced_persistent_volume_claim
        try:
            await self.requests.send("claim", create, self.namespace, pvc, expected=(403, 409))
        except ApiError as problem:
            # A quota is looked at before the name: 403 may be about a claim that is there.
            if problem.status == 403 and not await self._is_there(pvc.metadata.name):
                raise self.requests.refused("claim", problem) from None
        return True

    async def _is_there(self, claim: str) -> bool:
        """Whether a claim exists; False where nobody tells."""
        with suppress(StartRefused):
            return await self._check_pvc_exists(claim, self.namespace)
        return False

    async def _check_pvc_exists(self, pvc_name: str, namespace: str) -> bool:
        read = self.api.read_namespaced_persistent_volume_claim
        try:
            await self.requests.send("look at a claim", read, pvc_name, namespace, expected=(404,))
        except ApiError:
            return False
        return True

    async def _ensure_not_exists(self, kind: str, name: str) -> bool:
        delete = getattr(self.api, f"delete_namespaced_{kind}")
        read = getattr(self.api, f"read_namespaced_{kind}")
        try:
            await self.requests.send(f"deletion of a {kind}", delete, name, self.namespace, expected=(404,))
            await self.requests.send(f"look at a {kind}", read, name, self.namespace, expected=(404,))
        except ApiError:
            return True
        return False  # it goes; the parent asks again

    async def _make_create_resource_request(self, kind: str, manifest: Any) -> bool:
        create = getattr(self.api, f"create_namespaced_{kind}")
        with suppress(ApiError):  # a name that is taken: an answer was lost, because the earlier one was deleted before
            await self.requests.send(kind, create, self.namespace, manifest, expected=(409,))
        return True

    async def _make_delete_pvc_request(self, pvc_name: str, request_timeout: float) -> bool:
        delete = self.api.delete_namespaced_persistent_volume_claim
        with suppress(ApiError):  # it is gone
            await self.requests.send("deletion of a claim", delete, pvc_name, self.namespace, expected=(404,))
        return True
