"""``dlspawner bootstrap``: make the secrets that the product's processes share, once.

It needs one right, to create Secrets in one namespace, and can read none of them. Hence the rules:

* Every value is in one Secret and nowhere else, so each creation is complete by itself. A process receives single keys
  of the Secrets that it needs, never another process's.
* An existing Secret is kept, also one made by hand (the API server answers 409): a second run changes nothing, and an
  administrator with a value of their own makes that Secret first. To change a value, delete its Secret and run this
  again.
* No value is printed, logged or put on a command line.

Refused: one Secret per process. Tokens are shared by two processes each, and a run that ended between two Secrets could
neither read the value in the first one nor repair the second.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from dlspawner.clients import kubernetes

# The names of the gateway's files in ssh_gateway.transport.keys.
HOST_KEY, USER_CA = "ssh_host_ed25519_key", "user_ca"
LABELS = {"app.kubernetes.io/part-of": "dlspawner", "app.kubernetes.io/managed-by": "dlspawner-bootstrap"}

Values = Mapping[str, str]


def token() -> str:
    """Returns 256 random bits, safe in URLs, shells and YAML."""
    return secrets.token_urlsafe(32)


def password() -> str:
    """Returns 96 random bits that a user can type."""
    return secrets.token_urlsafe(12)


def gateway_keys() -> Values:
    """Returns the gateway's host key and the user CA that jobs trust, in OpenSSH's formats."""
    host, user_ca = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    return {
        HOST_KEY: _private(host),
        f"{HOST_KEY}.pub": _public(host, HOST_KEY),
        USER_CA: _private(user_ca),
        f"{USER_CA}.pub": _public(user_ca, USER_CA),
    }


def _public(key: Ed25519PrivateKey, name: str) -> str:
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return f"{public.decode()} dlspawner {name}\n"


def _private(key: Ed25519PrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()


def database(name: str, server: str) -> Values:
    """Returns the URL and password of a role and database ``name``, which the server makes from the password."""
    chosen = token()
    return {"password": chosen, "url": f"postgresql+psycopg://{name}:{chosen}@{server}/{name}"}


def wanted(login: bool, database_server: str, only: str = "") -> dict[str, Callable[[], Values]]:
    """Returns {name of the Secret: the function that makes its values}, of all or of one of those always made."""
    always: dict[str, Callable[[], Values]] = {
        "proxy-token": lambda: {"token": token()},
        "manager-token": lambda: {"token": token()},
        "gateway-token": lambda: {"token": token()},
        "hub-keys": lambda: {"cookie-secret": secrets.token_hex(32), "crypt-key": secrets.token_hex(32)},
        "gateway-keys": gateway_keys,
    }
    if only:
        return {only: always[only]}
    if login:
        always["login"] = lambda: {"password": password(), "admin-password": token()}
    if database_server:
        always["hub-database"] = lambda: database("hub", database_server)
        always["manager-database"] = lambda: database("manager", database_server)
    return always


def manifest(name: str, values: Values) -> kubernetes.Object:
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    metadata = {"name": name, "labels": LABELS}
    return {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": data}


async def make(
    client: kubernetes.KubernetesClient, namespace: str, making: Mapping[str, Callable[[], Values]]
) -> dict[str, bool]:
    """Creates missing Secrets. Returns {name: True if it was made now}; raises the first failure."""
    made: dict[str, bool] = {}
    for name, values in making.items():
        try:
            await client.create(kubernetes.SECRETS, manifest(name, values()), namespace)
        except kubernetes.Conflict:
            made[name] = False
        else:
            made[name] = True
    return made


async def run(namespace: str, kubeconfig: Path | None, making: Mapping[str, Callable[[], Values]]) -> dict[str, bool]:
    async with await kubernetes.KubernetesClient.connect(kubeconfig) as client:
        return await make(client, namespace or client.namespace, making)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--namespace", default="", help="where the Secrets go (default: the pod's or the kubeconfig's)")
    parser.add_argument("--kubeconfig", type=Path, help="default: $KUBECONFIG, or the pod's service account")
    parser.add_argument(
        "--login", action="store_true", help="passwords for the login of a first look, in the Secret login"
    )
    parser.add_argument("--only", choices=list(wanted(False, "")), default="", help="make this Secret alone")
    parser.add_argument(
        "--database",
        default="",
        metavar="SERVER",
        help="URLs and passwords for the databases on this PostgreSQL server",
    )


def main(given: argparse.Namespace) -> int:
    """Returns exit code 0 if all Secrets exist, 1 with a sentence if they could not be made."""
    try:
        making = wanted(given.login, given.database, given.only)
        made = asyncio.run(run(given.namespace, given.kubeconfig, making))
    except kubernetes.KubernetesError as error:
        print(f"The secrets could not be made: {error}", file=sys.stderr)
        return 1
    for name, new in made.items():
        print(f"secret {name}: {'made' if new else 'kept'}")
    return 0
