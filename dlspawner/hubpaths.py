"""Where the Hub's REST API has a user, a server or a group: names as paths. PURE.

``None`` stands for what no user, server or group can be called, so that nobody asks for it; every name is one segment,
whatever is in it.
"""

from __future__ import annotations

from urllib.parse import quote


def user_path(name: str) -> str | None:
    """A person."""
    segment = _segment(name)
    return None if segment is None else f"/users/{segment}"


def server_path(user: str, server: str) -> str | None:
    """A person's server; the default one has an empty name."""
    path, segment = user_path(user), _segment(server)
    if path is None or server == "":
        return None if path is None else f"{path}/server"
    return None if segment is None else f"{path}/servers/{segment}"


def group_path(name: str) -> str | None:
    """A group."""
    segment = _segment(name)
    return None if segment is None else f"/groups/{segment}"


def _segment(name: str) -> str | None:
    if name in {"", ".", ".."} or len(name) > 255:
        return None
    try:
        return quote(name, safe="")
    except UnicodeEncodeError:
        return None
