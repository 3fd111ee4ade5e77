"""The credentials of the Hub at the Manager: a token for its requests, and signed tickets for previews of the form.

Both processes have the Manager's service token. The Hub sends a token that is derived from it: the service token would
let any server at the Manager's address act as the Manager at the Hub.

Refused: another secret to create, mount and rotate; a token that the Manager verifies at the Hub, while the Hub waits
for the Manager's answer.
"""

from __future__ import annotations

import hashlib
import hmac
import json


def derive_hub_token(service_token: str) -> str:
    """The token of requests from the Hub to the service that owns ``service_token``."""
    return hmac.new(service_token.encode(), b"dlspawner: from the hub to the manager", hashlib.sha256).hexdigest()


def sign_preview(service_token: str, user: str, teams: tuple[str, ...], until: float) -> str:
    """Returns a ticket for the Hub's form: until then the Manager answers previews of this user without a login.

    The ticket permits nothing else, and contains no secret.
    """
    told = json.dumps([user, teams, int(until)])
    return f"{_mac(service_token, told)} {told}"


def read_preview(service_token: str, ticket: str, now: float) -> tuple[str, tuple[str, ...]] | None:
    """Returns the user and teams of a ticket; ``None`` for an invalid or expired one."""
    mac, _, told = ticket.partition(" ")
    if not hmac.compare_digest(mac.encode(), _mac(service_token, told).encode()):
        return None
    user, teams, until = json.loads(told)
    return (user, tuple(teams)) if now < until else None


def _mac(service_token: str, told: str) -> str:
    return hmac.new(service_token.encode(), f"dlspawner: preview {told}".encode(), hashlib.sha256).hexdigest()
