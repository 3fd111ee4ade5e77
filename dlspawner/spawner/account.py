"""Which uid, gid and groups a person's jobs have: the traits that say where to ask, and the asking.

A number from another source than yesterday's would leave a person without their files, or with somebody else's. So the
source that is set up decides, and if it cannot, the start is refused:

1. With ``account_keys`` the authenticator's ``auth_state`` decides for everybody.
2. Else the Manager, if it is set up, but for people whose ``auth_state`` has a uid under the usual name: their source
   is whatever the authenticator says that day, so an operator who has such an authenticator sets ``account_keys``.
3. Else KubeSpawner's own ``uid`` and ``gid``, with the same exception.

The Manager is asked at each start and its answers are not kept: after a loss of its database a Hub that remembered
would go on using numbers that the Manager gives to others.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from traitlets import Bool, Dict, Integer, TraitError, Unicode, validate
from traitlets.config import Configurable

from dlspawner.core.unix_account import AuthStateKeys, InvalidIds, UidRange, UnixIds, read_unix_ids
from dlspawner.spawner.manager import ManagerClient
from dlspawner.spawner.refusal import StartRefused

UNUSABLE = "Your login has no usable account number for jobs. Ask an administrator."
UNTOLD = (
    "Your login has not told the Hub your account number for jobs: log out and in again, or ask an administrator if "
    "that changes nothing."
)


class AccountTraits(Configurable):
    """The part of DLSpawner's configuration that is about people's accounts."""

    manager_token = Unicode(
        "",
        config=True,
        help="""
        The Manager's service token, as in JupyterHub.services. Requests to the Manager carry a token derived from it,
        never itself. With it and manager_url, people whose authenticator tells no uid get one from the Manager, the
        same for ever; account_keys excludes that. When teams.yaml gives any team a quota, the Manager is asked before
        the pod of a job is made, and no answer means no start. Empty, the default: people without a uid run jobs with
        KubeSpawner's uid, gid and fs_gid, and nobody counts GPUs.
        """,
    )
    account_keys = Dict(
        value_trait=Unicode(),
        key_trait=Unicode(),
        config=True,
        help="""
        Where auth_state has a person's numbers: a name, or names with dots between them, for uid, gid (without it, the
        uid) and groups (a list of numbers, or an object of names and numbers). What is not named here is "uid", "gid",
        "supplementary_groups"; for LDAP perhaps {"uid": "uidNumber", "gid": "gidNumber"}.

        With it, be it only {"uid": "uid"}, the authenticator decides for everybody, and who has no uid in auth_state,
        such as a person who has never logged in or a Hub without enable_auth_state, cannot start jobs. Empty, the
        default: who has a uid under the usual name runs with that, everybody else with the Manager's. In both cases a
        uid that is no number or too small, and any number in the range that the Manager gives from, is refused.
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

    strict_groups = Bool(
        False,
        config=True,
        help="""
        Whether a job has only the unix groups that its pod names (supplementalGroupsPolicy: Strict). False, the
        default: the container runtime adds the groups that the image's own /etc/group gives to the image's name for
        the person's uid, so who may choose an image chooses groups. Switch it on where every node for jobs has
        status.features.supplementalGroupsPolicy, as with Kubernetes 1.33 and containerd 2; other nodes refuse the jobs.
        """,
    )

    @validate("account_keys")
    def _check_account_keys(self, proposal: Any) -> Any:
        known = [field.name for field in fields(AuthStateKeys)]
        unknown = sorted(set(proposal.value) - set(known))
        if unknown:
            raise TraitError(f"account_keys has {', '.join(unknown)}; known are {', '.join(known)}.")
        return proposal.value


async def unix_ids(spawner: Any, uids: UidRange) -> UnixIds | None:
    """The person's numbers; ``None`` where KubeSpawner's configuration decides; Refused when it cannot be told."""
    found = await from_authenticator(spawner, uids)
    if found is not None or not (spawner.manager_url and spawner.manager_token):
        return found
    until = spawner._deadline()
    manager = ManagerClient(spawner.manager_url, spawner.manager_token, spawner.log, until=until)
    return await manager.account(str(spawner.user.name), uids)


async def from_authenticator(spawner: Any, uids: UidRange) -> UnixIds | None:
    """The numbers that the authenticator tells; ``None`` when it is not the source; Refused when they cannot be."""
    state = await spawner.user.get_auth_state()
    if state is None:
        if spawner.user.encrypted_auth_state is not None:
            raise _unusable(spawner, "auth_state cannot be decrypted")
        _refuse_untold(spawner, "there is no auth_state")
        return None
    found = read_unix_ids(state, AuthStateKeys(**spawner.account_keys), spawner.least_uid)
    if isinstance(found, InvalidIds):
        raise _unusable(spawner, found.why)
    if found is None:
        _refuse_untold(spawner, "auth_state has no uid")
        return None
    given = sorted(
        number for number in {found.uid, found.gid, *(group.gid for group in found.groups)} if number in uids
    )
    if given and spawner.manager_token:
        raise _unusable(spawner, f"auth_state has {given}, in the range that the Manager gives from")
    return found


def _refuse_untold(spawner: Any, why: str) -> None:
    """Nobody else is asked instead of an authenticator that has been named as the source."""
    if spawner.account_keys:
        raise _unusable(spawner, why, UNTOLD)


def _unusable(spawner: Any, why: str, sentence: str = UNUSABLE) -> StartRefused:
    line = f"account user={spawner.user.name} uid=none: {why}"
    spawner.log.warning(line)  # of a refusal the Hub logs the sentence alone
    return StartRefused(sentence, reason="account", status=403, log=line)
