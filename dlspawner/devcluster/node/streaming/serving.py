"""The identity of a node's own server, and of its callers, as the joined cluster wants them.

A cluster that publishes how its API server proves itself (the ConfigMap `extension-apiserver-authentication`, which
every kube-apiserver keeps) is served over TLS: the certificate comes from the cluster's own signer for kubelets, the
client must show one of the cluster's, and a SubjectAccessReview decides whether that client may use `nodes/proxy`.
The embedded API publishes nothing: it is on loopback too, speaks plain HTTP, and shows the token that it gave us.
Without a signer the certificate is self-signed: good for API servers that were given no authority for kubelets.
Refused: certificates kept from an earlier start; a cluster made anew in between would not know them.
"""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import hmac
import ipaddress
import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dlspawner.clients.kubernetes import CONFIG_MAPS, KubernetesClient, KubernetesError, ObjectNotFound, ResourceKind

log = logging.getLogger(__name__)

REQUESTS = ResourceKind("certificates.k8s.io/v1", "certificatesigningrequests", namespaced=False)
REVIEWS = ResourceKind("authorization.k8s.io/v1", "subjectaccessreviews", namespaced=False)
SIGNER = "kubernetes.io/kubelet-serving"
SIGNING_SECONDS = 10.0
_LIFETIME = dt.timedelta(days=365)
_VERBS = {"GET": "get", "POST": "create"}


class Doorkeeper(Protocol):
    """The questions of a node's server about a request."""

    @property
    def context(self) -> ssl.SSLContext | None:
        """None: plain HTTP."""
        ...

    async def admits(self, method: str, authorization: str, certificate: Mapping[str, Any]) -> int:
        """200, 401 or 403; ``certificate`` is the client's, verified, as `ssl.SSLSocket.getpeercert` gives it."""
        ...


@dataclass(frozen=True, slots=True)
class TokenDoorkeeper:
    """The embedded API's: plain HTTP with the cluster's own bearer token."""

    token: str
    context: None = None

    async def admits(self, method: str, authorization: str, certificate: Mapping[str, Any]) -> int:
        given = authorization.removeprefix("Bearer ")
        return 200 if self.token and hmac.compare_digest(given.encode(), self.token.encode()) else 401


@dataclass(frozen=True, slots=True)
class CertificateDoorkeeper:
    """A kube-apiserver's: TLS with certificates on both ends, and the cluster says what the client may do."""

    cluster: KubernetesClient
    node: str
    context: ssl.SSLContext

    async def admits(self, method: str, authorization: str, certificate: Mapping[str, Any]) -> int:
        subject = [pair for entry in certificate.get("subject", ()) for pair in entry]
        users = [value for name, value in subject if name == "commonName"]
        if not users:
            return 401
        groups = [value for name, value in subject if name == "organizationName"]
        asked = {"verb": _VERBS.get(method, ""), "resource": "nodes", "subresource": "proxy", "name": self.node}
        spec = {"user": users[0], "groups": [*groups, "system:authenticated"], "resourceAttributes": asked}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        try:
            answer = await self.cluster.create(REVIEWS, review)
        except KubernetesError as error:
            log.warning("node=%s user=%s cannot be reviewed: %s", self.node, users[0], error)
            return 403
        return 200 if answer["status"].get("allowed") else 403


async def doorkeeper(cluster: KubernetesClient, node: str, ip: str, directory: Path) -> Doorkeeper:
    """The one that fits the cluster; raises the errors of `clients.kubernetes` when it does not say."""
    try:
        published = await cluster.get(CONFIG_MAPS, "extension-apiserver-authentication", "kube-system")
    except ObjectNotFound:
        return TokenDoorkeeper(cluster.token)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    key = ec.generate_private_key(ec.SECP256R1())
    chain = directory / f"serving-{node}.pem"
    certificate = await _certificate(cluster, node, ip, key)
    _write_private(chain, certificate + _private(key))
    context.load_cert_chain(chain)
    authority = (published.get("data") or {}).get("client-ca-file", "")
    if authority:
        context.load_verify_locations(cadata=authority)
    context.verify_mode = ssl.CERT_OPTIONAL  # a client without one gets a status, not a broken connection
    return CertificateDoorkeeper(cluster, node, context)


async def _certificate(cluster: KubernetesClient, node: str, ip: str, key: ec.EllipticCurvePrivateKey) -> bytes:
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
            x509.NameAttribute(NameOID.COMMON_NAME, f"system:node:{node}"),
        ]
    )
    names = x509.SubjectAlternativeName([x509.DNSName(node), x509.IPAddress(ipaddress.ip_address(ip))])
    try:
        async with asyncio.timeout(SIGNING_SECONDS):
            return await _signed(cluster, node, subject, names, key)
    except (KubernetesError, TimeoutError) as error:
        log.warning("node=%s the cluster signs no certificate, it signs its own: %s", node, error or "no answer")
        return _self_signed(subject, names, key)


async def _signed(
    cluster: KubernetesClient,
    node: str,
    subject: x509.Name,
    names: x509.SubjectAlternativeName,
    key: ec.EllipticCurvePrivateKey,
) -> bytes:
    """By the cluster's signer for kubelets; the user that started us may approve the request, or another one does."""
    wanted = x509.CertificateSigningRequestBuilder().subject_name(subject).add_extension(names, critical=False)
    pem = wanted.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    spec = {
        "request": base64.b64encode(pem).decode(),
        "signerName": SIGNER,
        "usages": ["digital signature", "server auth"],
    }
    request = await cluster.create(REQUESTS, {"metadata": {"generateName": f"{node}-"}, "spec": spec})
    name = request["metadata"]["name"]
    approval = {"type": "Approved", "status": "True", "reason": "OwnNode", "message": "this is the node that asks"}
    request["status"] = {"conditions": [approval]}
    await cluster.replace(REQUESTS, name, request, subresource="approval")
    async for change in cluster.watch(REQUESTS, fields=f"metadata.name={name}"):
        if certificate := (change.object.get("status") or {}).get("certificate"):
            return base64.b64decode(certificate)
    raise AssertionError("a watch never ends")


def _self_signed(subject: x509.Name, names: x509.SubjectAlternativeName, key: ec.EllipticCurvePrivateKey) -> bytes:
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + _LIFETIME)
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write_private(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(content)
