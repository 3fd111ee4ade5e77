"""The cluster's authorities, certificates and kubeconfigs, made in one go and kept with its state."""

from __future__ import annotations

import base64
import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.kubernetes.instance import Instance

VALID = datetime.timedelta(days=365)
# user of a kubeconfig -> common name and organisation, which are Kubernetes' user and group
USERS = {
    "admin": ("admin", "system:masters"),
    "kube-controller-manager": ("system:kube-controller-manager", None),
    "kube-scheduler": ("system:kube-scheduler", None),
    "kube-proxy": ("system:kube-proxy", None),
}


_USES = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
_USES += ("key_cert_sign", "crl_sign", "encipher_only", "decipher_only")
_SIGNS = x509.KeyUsage(**{name: name in {"key_cert_sign", "crl_sign"} for name in _USES})


@dataclass(frozen=True, slots=True)
class Authority:
    """One certificate authority."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls, name: str) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name, None)
        builder = begun(subject, subject, key)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        # Python 3.13 and newer take no authority without these.
        builder = builder.add_extension(_SIGNS, critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        return cls(builder.sign(key, hashes.SHA256()), key)

    def issue(self, name: str, organization: str | None = None, served: tuple[str, ...] = ()) -> tuple[bytes, bytes]:
        """A certificate for a client, or for a server at these names and addresses, and its key, as PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = ExtendedKeyUsageOID.SERVER_AUTH if served else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = begun(_name(name, organization), self.certificate.subject, key)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = builder.add_extension(signer, critical=False)
        if served:
            builder = builder.add_extension(x509.SubjectAlternativeName([general(each) for each in served]), False)
        return pem(builder.sign(self.key, hashes.SHA256())), pem(key)


def _name(name: str, organization: str | None) -> x509.Name:
    parts = {NameOID.ORGANIZATION_NAME: organization, NameOID.COMMON_NAME: name}
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in parts.items() if value])


def begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + VALID)
    )


def general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def pem(thing: x509.Certificate | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    if isinstance(thing, x509.Certificate):
        return thing.public_bytes(serialization.Encoding.PEM)
    encoding, private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return thing.private_bytes(encoding, private, serialization.NoEncryption())


def write(path: Path, content: bytes | str) -> None:
    """A file that only its owner reads."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch(mode=0o600)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def make(instance: Instance) -> None:
    """Everything that the cluster's programs authenticate with, unless an earlier start made it."""
    if instance.kubeconfig().exists():
        return
    authority, front_proxy = Authority.create("kubernetes-ca"), Authority.create("front-proxy-ca")
    write(instance.certificate("ca"), pem(authority.certificate))
    write(instance.key("ca"), pem(authority.key))
    write(instance.certificate("front-proxy-ca"), pem(front_proxy.certificate))
    accounts = rsa.generate_private_key(public_exponent=65537, key_size=2048)  # signs service accounts' tokens
    public = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    write(instance.key("accounts"), pem(accounts))
    write(instance.run / "pki" / "accounts.pub", accounts.public_key().public_bytes(*public))
    node = f"system:node:{instance.node_name}"
    service = tuple(f"kubernetes{suffix}" for suffix in ("", ".default", ".default.svc", ".default.svc.cluster.local"))
    addresses = ("localhost", "127.0.0.1", instance.host_ip, instance.service_api_ip)
    for name, (certificate, key) in {
        "apiserver": authority.issue("kube-apiserver", served=service + addresses),
        "apiserver-kubelet-client": authority.issue("apiserver-kubelet-client", "system:masters"),
        "front-proxy-client": front_proxy.issue("front-proxy-client"),
        "kubelet": authority.issue(node, "system:nodes", (instance.node_name, instance.node_ip)),
    }.items():
        write(instance.certificate(name), certificate)
        write(instance.key(name), key)
    users = USERS | {"kubelet": (node, "system:nodes")}
    for user, (name, organization) in sorted(users.items(), key=lambda pair: pair[0] == "admin"):
        _kubeconfig(instance, user, authority, *authority.issue(name, organization))


def _kubeconfig(instance: Instance, user: str, authority: Authority, certificate: bytes, key: bytes) -> None:
    def data(content: bytes) -> str:
        return base64.b64encode(content).decode()

    trusted = {"server": instance.server, "certificate-authority-data": data(pem(authority.certificate))}
    proven = {"client-certificate-data": data(certificate), "client-key-data": data(key)}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": instance.name, "cluster": trusted}],
        "users": [{"name": user, "user": proven}],
        "contexts": [{"name": instance.name, "context": {"cluster": instance.name, "user": user}}],
        "current-context": instance.name,
    }
    write(instance.kubeconfig(user), yaml.safe_dump(config))
