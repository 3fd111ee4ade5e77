"""The certificates of upstream connections, and the words about a default server."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import asyncssh
import pytest

from ssh_gateway.core.certificates import UNBOUND, SessionBounds
from ssh_gateway.core.packets import RelayPolicy
from ssh_gateway.session import session, upstream

CA = asyncssh.generate_private_key("ssh-ed25519")


@pytest.mark.parametrize("policy", [RelayPolicy(), RelayPolicy(True, True)], ids=["closed", "open"])
@pytest.mark.parametrize("bounds", [UNBOUND, SessionBounds(frozenset({"pty"}))], ids=["unbound", "only a terminal"])
def test_certificate_permits_what_policy_and_login_permit(policy: RelayPolicy, bounds: SessionBounds) -> None:
    target: Any = SimpleNamespace(job="j-1")
    _, certificate = upstream.issue(CA, target, policy, bounds, 1e9)
    found = set(certificate.options) - {"force-command"}
    allowed = {"port-forwarding", "pty", "user-rc"}
    allowed |= {"agent-forwarding"} if policy.agent_forwarding else set()
    allowed |= {"X11-forwarding"} if policy.x11_forwarding else set()
    assert found == {f"permit-{name}" for name in allowed & bounds.permits}


async def test_login_waits_for_words_about_the_default_server_until_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "LOOK_SECONDS", 0.05)
    shown: list[str] = []

    async def hangs() -> str:
        await asyncio.Event().wait()
        return "never"

    one: Any = SimpleNamespace(_pending_message=hangs, _say=shown.append)
    await asyncio.wait_for(session.Session.announce(one), 30)
    assert not shown
