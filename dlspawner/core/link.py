"""The proof of the Hub to the Manager that it is the Hub.

Both hold the Manager's service token: the Hub gave it. The Hub does not show that token, which would let any server
at the Manager's address act as the Manager at the Hub, but one derived from it, good for nothing else.

Refused: a secret more to make, mount and rotate; and a token that the Manager would have to ask the Hub about, while
the Hub waits for the Manager's answer.
"""

from __future__ import annotations

import hashlib
import hmac
import json


def derive_hub_token(service_token: str) -> str:
    """The token of requests from the Hub to the service that owns ``service_token``."""
    return hmac.new(service_token.encode(), b"dlspawner: from the hub to the manager", hashlib.sha256).hexdigest()


def sign_preview(service_token: str, user: str, teams: tuple[str, ...], until: float) -> str:
    """A ticket for the form, the Hub's page: the service answers its owner's previews until then, without a login.

    Logins at the service are for its own pages. The ticket is good for nothing else, and holds no secret.
    """
    told = json.dumps([user, teams, int(until)])
    return f"{_mac(service_token, told)} {told}"


def read_preview(service_token: str, ticket: str, now: float) -> tuple[str, tuple[str, ...]] | None:
    """The user and teams of a ticket; ``None`` for one that is not ours or too old."""
    mac, _, told = ticket.partition(" ")
    if not hmac.compare_digest(mac.encode(), _mac(service_token, told).encode()):
        return None
    user, teams, until = json.loads(told)
    return (user, tuple(teams)) if now < until else None


def _mac(service_token: str, told: str) -> str:
    return hmac.new(service_token.encode(), f"dlspawner: preview {told}".encode(), hashlib.sha256).hexdigest()
