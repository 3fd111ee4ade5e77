"""Exempts the cluster's own API server from proxy variables, which are for addresses outside the cluster.

aiohttp obeys ``http_proxy`` and the like only with ``trust_env``; of the libraries that the product uses inside a
cluster only kubernetes_asyncio sets it.
"""

from __future__ import annotations

import os
from urllib.parse import urlsplit


def reach_directly(url: str) -> None:
    """Exempts a host from this process's proxy variables, if it is this machine or the API server of this cluster."""
    host = urlsplit(url).hostname or ""
    if host not in {"localhost", "127.0.0.1", "::1", os.environ.get("KUBERNETES_SERVICE_HOST")}:
        return
    for name in ("no_proxy", "NO_PROXY"):
        known = [one for one in os.environ.get(name, "").split(",") if one]
        if host not in known:
            os.environ[name] = ",".join([*known, host])
