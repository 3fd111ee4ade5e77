"""Jobs with special permissions: where they are, and what may be in the pod of any job.

The namespace of ordinary jobs enforces Pod Security *restricted*. A job whose template asks for special permissions is
made in a second namespace, which does not, so there it is this module that judges: the final manifest, whichever way
something got into it (the template, a profile, KubeSpawner's configuration, a hook), uses what its template asks for
and the cluster's file switches on, or it is refused. With a second namespace that holds for every job; without one
nothing changes, and Kubernetes alone judges.

A server's pod, Secret, Services and claims are all in one namespace, which is KubeSpawner's ``namespace`` and part of
the server's state. A claim is of its namespace: the home directory of a job with special permissions is another one
than that of the person's ordinary jobs. A claim of the same name that an administrator makes in the second namespace,
on a volume with the same data, is used as it is.

Refused: one namespace with exemptions by service account or runtime class. Whoever could make a pod there could take
the exemption as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from traitlets import Unicode

from dlspawner.core.config import ClusterConfig, format_permissions
from dlspawner.core.launch.security import PermissionUse, disallowed, permission_uses
from dlspawner.core.template import Template
from dlspawner.spawner.base import LifecycleSpawner
from dlspawner.spawner.refusal import StartRefused

STATE_SPECIAL = "dlspawner_special"
_SHOWN = 3  # uses that a sentence names
NOWHERE = "This template needs special permissions (%s), and this Hub has no place for such jobs. Ask an administrator."
NOBODY = "This template needs special permissions (%s), which nobody can approve here. Ask an administrator."


class SpecialSpawner(LifecycleSpawner):
    """A KubeSpawner with a second namespace."""

    special_namespace = Unicode(
        "",
        config=True,
        help="""
        The namespace of jobs with special permissions (root, privileged, host network, host paths, devices), a second
        one beside KubeSpawner.namespace: with the label pod-security.kubernetes.io/enforce: privileged, and with the
        Hub's, the Manager's and the gateway's rights (hub_config/kubernetes/components/special). The Manager and the
        gateway need the same name, Manager.special_namespace and Gateway.special_namespace. With it, the final
        manifest of every job, hooks included, may use only the permissions that its template asks for and cluster.yaml
        switches on. Empty, the default: no job has special permissions. Not with enable_user_namespaces.
        """,
    )

    _special = False  # whether the job is in the second namespace
    _kept_claim: Any = None  # that is made with the pod

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), **({STATE_SPECIAL: True} if self._special else {})}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._special = state.get(STATE_SPECIAL) is True

    def clear_state(self) -> None:
        super().clear_state()
        self._to_namespace(special=False)

    def _to_namespace(self, *, special: bool) -> None:
        """Where the next job is. KubeSpawner remembers for ever where the last one was, and that it has a claim."""
        if special or self._special:
            self._pvc_exists = False
        if special:
            self.namespace = self.special_namespace
        elif self._special:
            self.namespace = str(self.configured("namespace") or self._namespace_default())
        self._special = special

    async def _make_create_pvc_request(self, pvc: Any, request_timeout: float) -> bool:
        """Of a job with special permissions nothing is made before it is approved, not even a home directory."""
        if not self._special:
            return await super()._make_create_pvc_request(pvc, request_timeout)
        self._kept_claim = pvc
        return True

    async def _create(self, manifest: dict[str, Any], until: float = math.inf) -> Mapping[str, Any]:
        claim, self._kept_claim = self._kept_claim, None
        if claim is not None:
            await super()._make_create_pvc_request(claim, self.k8s_api_request_timeout)
        return await super()._create(manifest, until)

    def _check_place(self, template: Template, *, has_manager: bool) -> None:
        """Refused when there is no place for a job of this template, or nobody to approve it."""
        if not template.special:
            return
        words = format_permissions(template.special)
        if not self.special_namespace or self.enable_user_namespaces:
            self.log.error("template=%s needs %s: DLSpawner.special_namespace is not set", template.name, words)
            raise StartRefused(NOWHERE % words, reason="special-namespace", status=403)
        if not has_manager:
            self.log.error("template=%s needs %s: there is no Manager to approve it", template.name, words)
            raise StartRefused(NOBODY % words, reason="special-approval", status=403)

    def _check_permissions(self, manifest: dict[str, Any], template: Template, cluster: ClusterConfig) -> None:
        """Refused when the final manifest uses more than its template asks for and the cluster has."""
        found = disallowed(manifest, template.special & cluster.special) if self.special_namespace else ()
        if not found:
            return
        all_of_them = "; ".join(f"{use.special.value}: {use.what}" for use in found)
        self.log.error("pod=%s template=%s uses what it may not: %s", self.pod_key, template.name, all_of_them)
        raise StartRefused(_refusal(found, template), reason="special-permission", status=403)


def asked_for(manifest: dict[str, Any], template: Template) -> list[str]:
    """The permissions that somebody has to approve: what the manifest uses, or else what the template asks for."""
    used = {use.special for use in permission_uses(manifest)} if template.special else set()
    return sorted(special.value for special in used or template.special)


def _refusal(found: tuple[PermissionUse, ...], template: Template) -> str:
    what = [use.what for use in found[:_SHOWN]]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    needs = format_permissions(use.special for use in found)
    return (
        f"The job would have more rights than its template “{template.name}” asks for: {', '.join(what)}{more} "
        f"({needs}). Ask an administrator."
    )
