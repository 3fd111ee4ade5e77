"""The proxy before the API server that a kubeconfig names."""

from __future__ import annotations

import base64
import contextlib
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from yarl import URL

from tests.harness.faults.proxy import Proxy


@contextlib.contextmanager
def before(kubeconfig: Path, written: Path, seed: int = 1) -> Iterator[Proxy]:
    """A proxy before the API server of a kubeconfig; another one, which leads to it, is written."""
    config = yaml.safe_load(kubeconfig.read_text())
    context = _named(config, "context", config["current-context"])
    cluster, user = _named(config, "cluster", context["cluster"]), _named(config, "user", context["user"])
    headers = {}
    if token := user.get("token") or (Path(user["tokenFile"]).read_text().strip() if "tokenFile" in user else ""):
        headers["Authorization"] = f"Bearer {token}"
    proxy = Proxy(URL(cluster["server"]), _tls(cluster, user, kubeconfig.parent), headers, written, seed)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()


def _named(config: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    return next(dict(one[kind]) for one in config[f"{kind}s"] if one["name"] == name)


def _tls(cluster: dict[str, Any], user: dict[str, Any], folder: Path) -> ssl.SSLContext | bool:
    if not cluster["server"].startswith("https"):
        return True
    authority = _content(cluster, "certificate-authority", folder)
    context = ssl.create_default_context(cadata=authority.decode() if authority else None)
    certificate, key = _content(user, "client-certificate", folder), _content(user, "client-key", folder)
    if certificate and key:
        with tempfile.NamedTemporaryFile() as both:  # its owner's alone
            both.write(certificate + b"\n" + key)
            both.flush()
            context.load_cert_chain(both.name)
    return context


def _content(entry: dict[str, Any], key: str, folder: Path) -> bytes:
    if f"{key}-data" in entry:
        return base64.b64decode(entry[f"{key}-data"])
    return (folder / entry[key]).read_bytes() if key in entry else b""
