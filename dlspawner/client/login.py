"""The Hub's address and the user's token: from the environment, or from the file that ``dlspawner login`` writes.

``DLSPAWNER_URL`` and ``DLSPAWNER_TOKEN`` take precedence over the file, which only its owner may read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from dlspawner.client.service import ClientProblem, Service

NOT_LOGGED_IN = (
    "Run dlspawner login URL first, with the Hub's address and a token of its token page; or set DLSPAWNER_URL and "
    "DLSPAWNER_TOKEN."
)


def kept_file(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME") or "~").expanduser() / ".config")
    return Path(base) / "dlspawner" / "login.json"


def service(environ: Mapping[str, str]) -> Service:
    url, token = environ.get("DLSPAWNER_URL", ""), environ.get("DLSPAWNER_TOKEN", "")
    if not (url and token):
        kept = _read(kept_file(environ))
        # A token is sent only to the Hub with which it was stored.
        if url and url_of(url) != kept.get("url"):
            raise ClientProblem(NOT_LOGGED_IN, 4)
        url, token = kept.get("url", ""), token or kept.get("token", "")
    if not (url and token):
        raise ClientProblem(NOT_LOGGED_IN, 4)
    return Service(url_of(url), checked(token))


def url_of(text: str) -> str:
    """Returns the Hub's public address from the address of any of its pages."""
    try:
        parts = _parts(text)
    except ValueError:
        raise ClientProblem(f"{text!r} is no address of a Hub; it looks like https://hub.example.org.", 2) from None
    path = parts.path.split("/hub/")[0].split("/services/")[0].rstrip("/").removesuffix("/hub")
    return f"{parts.scheme}://{parts.netloc}{path}"


def _parts(text: str) -> SplitResult:
    text = text.strip()
    parts = urlsplit(text if "://" in text else f"https://{text}")
    right = parts.scheme in {"http", "https"} and parts.hostname and parts.username is None and parts.port != 0
    if not right or not all("!" <= char <= "~" for char in parts.netloc + parts.path):
        raise ValueError(text)
    return parts


def checked(token: str) -> str:
    """Returns a token that fits into a header, without the white space that was pasted with it."""
    token = token.strip()
    if not (0 < len(token) <= 4096 and all("!" <= char <= "~" for char in token)):
        raise ClientProblem("That is no token: it is one word of letters and digits.", 2)
    return token


def keep(file: Path, url: str, token: str) -> None:
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace(file, json.dumps({"url": url, "token": token}))
    except OSError as problem:
        raise ClientProblem(
            f"{file} cannot be written: {problem.strerror}. DLSPAWNER_URL and DLSPAWNER_TOKEN work without it.", 1
        ) from None


def replace(file: Path, content: str) -> None:
    """Replaces a file in one step; at no moment readable for other users."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(content)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


def _read(file: Path) -> dict[str, str]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as problem:
        raise ClientProblem(f"{file} cannot be read ({problem}). Run dlspawner login again.", 4) from None
    return (
        {name: value for name, value in content.items() if isinstance(value, str)} if isinstance(content, dict) else {}
    )
