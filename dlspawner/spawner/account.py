"""Which uid, gid and groups a person's jobs have: the traits that say where to ask, and the asking.

In this order: the authenticator (``auth_state``), the Manager's allocation, KubeSpawner's own ``uid`` and ``gid``. The
first source that is set up decides; if it cannot, the start is refused. A number from another source than yesterday's
would leave a person without their files, or with somebody else's.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from traitlets import Dict, Integer, TraitError, Unicode, validate
from traitlets.config import Configurable

from dlspawner.core.accounts import Keys, Numbers, UidRange, Unusable, read_numbers
from dlspawner.spawner.manager import Manager
from dlspawner.spawner.refusal import Refused

UNUSABLE = "Your login has no usable account number for jobs. Ask an administrator."

# What the Manager has said never changes, so each process asks once per Manager and user.
_allocated: dict[tuple[str, str], Numbers] = {}


class AccountTraits(Configurable):
    """The part of DLSpawner's configuration that is about people's accounts."""

    manager_token = Unicode(
        "",
        config=True,
        help="""
        The Manager's service token, as in JupyterHub.services. Requests to the Manager carry a token derived from it,
        never itself. With it and manager_url, people whose authenticator tells no uid get one from the Manager, the
        same for ever. Empty, the default: such people's jobs run with KubeSpawner's uid, gid and fs_gid.
        """,
    )
    account_keys = Dict(
        value_trait=Unicode(),
        key_trait=Unicode(),
        config=True,
        help="""
        Where auth_state has a person's numbers: a name, or names with dots between them, for uid, gid (without it, the
        uid) and groups (a list of numbers, or an object of names and numbers). Default:
        {"uid": "uid", "gid": "gid", "groups": "supplementary_groups"}; for LDAP perhaps {"uid": "uidNumber", "gid":
        "gidNumber"}. A person whose auth_state has no uid gets one from the Manager; one whose uid is no number, too
        small, or in the range that the Manager gives from, cannot start jobs.
        """,
    )
    least_uid = Integer(
        1000,
        min=1,
        config=True,
        help="""
        The smallest uid that is accepted from the authenticator. 1000, the default, is where distributions begin to
        number people; below are the accounts of systems, which own other things on shared storage.
        """,
    )

    @validate("account_keys")
    def _check_account_keys(self, proposal: Any) -> Any:
        known = [field.name for field in fields(Keys)]
        unknown = sorted(set(proposal.value) - set(known))
        if unknown:
            raise TraitError(f"account_keys has {', '.join(unknown)}; known are {', '.join(known)}.")
        return proposal.value


async def numbers(spawner: Any, uids: UidRange) -> Numbers | None:
    """The person's numbers; ``None`` where KubeSpawner's configuration decides; Refused when it cannot be told."""
    found = await _from_authenticator(spawner, uids)
    if found is not None or not (spawner.manager_url and spawner.manager_token):
        return found
    name = str(spawner.user.name)
    key = (spawner.manager_url, name)
    if key not in _allocated:
        manager = Manager(spawner.manager_url, spawner.manager_token, spawner.log)
        _allocated[key] = await manager.account(name, uids)
    return _allocated[key]


async def _from_authenticator(spawner: Any, uids: UidRange) -> Numbers | None:
    state = await spawner.user.get_auth_state()
    if state is None:
        if spawner.user.encrypted_auth_state is not None:
            raise _unusable(spawner, "auth_state cannot be decrypted")
        return None
    found = read_numbers(state, Keys(**spawner.account_keys), spawner.least_uid)
    if isinstance(found, Unusable):
        raise _unusable(spawner, found.why)
    if found is not None and spawner.manager_token and (found.uid in uids or found.gid in uids):
        raise _unusable(spawner, f"{found.uid}:{found.gid} is in the range that the Manager gives from")
    return found


def _unusable(spawner: Any, why: str) -> Refused:
    line = f"account user={spawner.user.name} uid=none: {why}"
    return Refused(UNUSABLE, reason="account", status=403, log=line)
