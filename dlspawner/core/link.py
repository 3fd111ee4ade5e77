"""The proof of the Hub to the Manager that it is the Hub.

Both hold the Manager's service token: the Hub gave it. The Hub does not show that token, which would let any server
at the Manager's address act as the Manager at the Hub, but one derived from it, good for nothing else.

Refused: a secret more to make, mount and rotate; and a token that the Manager would have to ask the Hub about, while
the Hub waits for the Manager's answer.
"""

from __future__ import annotations

import hashlib
import hmac


def derive_hub_token(service_token: str) -> str:
    """The token of requests from the Hub to the service that owns ``service_token``."""
    return hmac.new(service_token.encode(), b"dlspawner: from the hub to the manager", hashlib.sha256).hexdigest()
