"""People who are removed from the Hub or renamed: two of JupyterHub's requests, with what has to come first.

* **Removing.** JupyterHub (5.5 to 6.1) stops the default server only, and answers 500 for a person with another one
  that runs or starts: the person stays, and so do pods and what is charged for them. Here every server is stopped
  first, with its grace period. The Manager forgets the SSH keys.
* **Renaming.** What a person has on disk belongs to a name: the Manager's uid, the claim with the home directory, the
  path of that directory. A renamed person keeps the *account*, which is the first name; the Manager stores it for ever,
  with keys and history under the new name. Running servers have the name in their pods and addresses, so they have to
  be stopped before. A new person whose name is the account of another one starts nothing, not even when that one is
  removed: the files would be the other's.

JupyterHub (6.1) takes the name away from a person whose own name is in the request, as in every request of its admin
page that makes a person an administrator. Here the name stays.

JupyterHub has no hook at either place, so its two methods are wrapped, within the same scopes.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from jupyterhub.apihandlers.users import UserAPIHandler
from jupyterhub.scopes import needs_scope
from tornado import web

_delete, _patch = UserAPIHandler.delete, UserAPIHandler.patch


def install() -> None:
    UserAPIHandler.delete, UserAPIHandler.patch = delete, patch


@needs_scope("delete:users")  # type: ignore[untyped-decorator]  # JupyterHub has no types
async def delete(self: UserAPIHandler, user_name: str) -> None:
    user = self.find_user(user_name)
    if user is not None and user.name != self.current_user.name:
        spawners = [user.spawners[name] for name in user.orm_spawners]
        for spawner in spawners:
            await spawner.cancel_pending()  # or it would get what the others hold
        await asyncio.gather(*(_stop(self, user, spawner) for spawner in spawners))
        if user.active:
            raise web.HTTPError(
                409, f"Not all servers of {user_name} could be stopped, so nothing is deleted: try again."
            )
        await user.spawner.person_is_removed()
    await _delete(self, user_name)


async def _stop(handler: UserAPIHandler, user: Any, spawner: Any) -> None:
    """Returns when the server has stopped; also one that starts, or stops already."""
    start = spawner._spawn_future if spawner.pending == "spawn" else None
    if start is not None:
        start.cancel()
        await asyncio.wait({start})
    if not spawner.pending and (start is not None or spawner.ready):
        await handler.stop_single_user(user, spawner.name)
    stop = getattr(spawner, "_stop_future", None)
    if stop is not None:
        await asyncio.wait({stop})


@needs_scope("admin:users")  # type: ignore[untyped-decorator]
async def patch(self: UserAPIHandler, user_name: str) -> None:
    user, data = self.find_user(user_name), self.get_json_body()
    name = data.get("name", user_name) if user is not None and isinstance(data, dict) else user_name
    if isinstance(data, dict) and data.get("name") == user_name:
        del data["name"]
        self.request.body = json.dumps(data).encode()
    new = self.authenticator.normalize_username(name) if isinstance(name, str) else user_name
    renames = new != user_name and self.authenticator.validate_username(new) and self.find_user(new) is None
    if not (renames and getattr(user.spawner, "offers_jobs", False)):
        await _patch(self, user_name)
        return
    if user.active:
        raise web.HTTPError(409, f"{user_name} has servers that run: stop them, then rename.")
    spawner = user.spawner
    await spawner.person_is_renamed(user_name, new)
    try:
        await _patch(self, user_name)
    except Exception:
        await spawner.person_is_renamed(new, user_name)
        raise
    self.users.pop(user.id, None)  # its addresses and its spawners' names are the old ones
