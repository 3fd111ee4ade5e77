"""Tell the Manager which public keys lie in this home directory, so that the keys page can offer to import them.

Runs inside the job, in the background, with the python3 of the image; only public keys are read, every problem
is silent, and an alarm ends it after half a minute.
"""

import json
import os
import signal
import urllib.request
from pathlib import Path

LARGEST_FILE = 64 * 1024
MOST_KEYS = 20


def found(directory: Path) -> "list[dict[str, str]]":
    """Public keys as {"key", "source"}: the person's own key pairs first, then what the account already lets in."""
    keys = []
    for path in [*sorted(directory.glob("*.pub")), directory / "authorized_keys"]:
        try:
            with path.open("rb") as file:
                text = file.read(LARGEST_FILE).decode("utf-8", "replace")
        except OSError:
            continue
        for line in text.splitlines():
            if line.startswith(("ssh-", "ecdsa-", "sk-")):
                keys.append({"key": line.strip(), "source": "~/.ssh/" + path.name})
    return keys[:MOST_KEYS]


def main() -> None:
    if hasattr(signal, "alarm"):
        signal.alarm(30)
    keys = found(Path.home() / ".ssh")
    if not keys:
        return
    # The address is the Hub's own setting.
    request = urllib.request.Request(  # noqa: S310
        os.environ["DLSPAWNER_MANAGER_URL"].rstrip("/") + "/api/key-suggestions",
        data=json.dumps({"keys": keys}).encode("utf-8"),
        headers={
            "Authorization": "token " + os.environ["JUPYTERHUB_API_TOKEN"],
            "Content-Type": "application/json",
        },
        method="PUT",
    )
    directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # proxy variables lead out of the cluster
    directly.open(request, timeout=10).close()


if __name__ == "__main__":
    main()
