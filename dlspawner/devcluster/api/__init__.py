"""A small Kubernetes API server for development and tests: `await start(state_dir, port)`.

It serves the part of the API that the product, KubeSpawner and everyday kubectl need (see `resources`), kept in one
SQLite file, with the controllers that this needs: a first-fit scheduler, endpoints, claims, garbage collection, node
leases. RBAC, admission plugins, custom resources, quotas and preemption are the real one's; so is isolation: everything
is on loopback, and one token may do everything.

Refused: **kmock 0.8** (looked at because it is a kept Kubernetes mock for Python). It keeps objects of any kind in
memory and can watch them, but has no selectors, patch kinds other than merge, tables, graceful deletion, garbage
collection, paging, TLS, tokens, persistence, log or exec; what is left is smaller than the adapter. **jsonpatch** (its
dependency) saves eighty lines and brings untyped code. **kwok** and **envtest** bring the real binaries: that is what
`tests/kubernetes` is for.
"""

from dlspawner.devcluster.api.server import RunningApi, start
from dlspawner.devcluster.api.store import StateInUse

__all__ = ["RunningApi", "StateInUse", "start"]
