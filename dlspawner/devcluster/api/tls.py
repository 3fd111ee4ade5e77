"""The server's own certificate authority, certificate, token and kubeconfig.

kubectl sends a bearer token over TLS only, so even a server on loopback has a certificate. Everything is made once and
kept in the state directory, readable by its owner alone; the kubeconfig is replaced atomically, so that a reader never
sees half of one.
"""

import base64
import datetime as dt
import ipaddress
import os
import secrets
import ssl
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = dt.timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class Credentials:
    """The server's certificate and its demands on clients."""

    ca: Path
    certificate: Path
    key: Path
    token: str

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key)
        return context


def credentials(state: Path) -> Credentials:
    """Returns the certificates of the state directory; made when the first server of this directory starts."""
    kept = Credentials(state / "ca.crt", state / "server.crt", state / "server.key", _token(state / "token"))
    if not all(path.exists() for path in (kept.ca, kept.certificate, kept.key)):
        _issue(kept)
    return kept


def write_private(path: Path, content: bytes) -> None:
    """Replaces a file atomically; only its owner can read it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    temporary.replace(path)


def kubeconfig(url: str, kept: Credentials, namespace: str) -> bytes:
    name = "dlspawner-embedded"
    authority = base64.b64encode(kept.ca.read_bytes()).decode()
    context = {"cluster": name, "user": name, "namespace": namespace}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": {"server": url, "certificate-authority-data": authority}}],
            "users": [{"name": name, "user": {"token": kept.token}}],
            "contexts": [{"name": name, "context": context}],
            "current-context": name,
        },
        sort_keys=False,
    ).encode()


def _token(path: Path) -> str:
    if not path.exists():
        write_private(path, secrets.token_urlsafe(32).encode())
    return path.read_text(encoding="utf-8").strip()


def _issue(kept: Credentials) -> None:
    """Makes a CA and the one certificate that it signs; the CA's key is forgotten at once."""
    ca_key = ec.generate_private_key(ec.SECP256R1())
    server_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = _name("dlspawner embedded cluster CA")
    usage = {"content_commitment": False, "key_encipherment": False, "data_encipherment": False, "key_agreement": False}
    ca = (
        _builder(ca_name, ca_name, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                key_cert_sign=True,
                crl_sign=True,
                encipher_only=False,
                decipher_only=False,
                **usage,
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    addresses = [x509.IPAddress(ipaddress.ip_address(address)) for address in ("127.0.0.1", "::1")]
    certificate = (
        _builder(_name("kube-apiserver"), ca_name, server_key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost"), *addresses]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    write_private(
        kept.key,
        server_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )
    write_private(kept.certificate, certificate.public_bytes(serialization.Encoding.PEM))
    write_private(kept.ca, ca.public_bytes(serialization.Encoding.PEM))


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + _LIFETIME)
    )
