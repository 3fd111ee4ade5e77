"""Tell the Manager whether a kernel of this job's notebook server is busy, and how long ago it or a terminal was used.

Runs inside the job, in the background, with the python3 of the image, from its beginning to its end. It asks the
notebook server with the job's own token, in a way that the server does not count as activity, and tells nothing but
"busy" and seconds: this clock is the pod's. A job without a notebook server tells nothing. The Manager says when to
tell again; whatever goes wrong is silent and tried again.
"""

import json
import os
import time
import urllib.error
import urllib.request
from datetime import datetime, timezone
from typing import Any

USUALLY = 60.0
SOON = 10.0
DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # proxy variables lead out of the cluster


def ask(method: str, url: str, body: "object | None" = None) -> Any:
    """The JSON of an answer. Both addresses are the Hub's own settings."""
    request = urllib.request.Request(  # noqa: S310
        url,
        data=None if body is None else json.dumps(body).encode("utf-8"),
        headers={
            "Authorization": "token " + os.environ["JUPYTERHUB_API_TOKEN"],
            "Content-Type": "application/json",
        },
        method=method,
    )
    with DIRECTLY.open(request, timeout=20) as answer:
        return json.loads(answer.read())


def report(kernels: "list[dict[str, Any]]", terminals: "list[dict[str, Any]]", now: datetime) -> "dict[str, Any]":
    """Returns the report on the kernels and terminals that a notebook server lists.

    Only "busy" is at work: a kernel that hangs, or that no client has asked anything, stays "starting" for ever.
    """
    busy = any(kernel.get("execution_state") == "busy" for kernel in kernels)
    texts = [one["last_activity"] for one in [*kernels, *terminals] if one.get("last_activity")]
    times = [datetime.fromisoformat(text.replace("Z", "+00:00")) for text in texts]
    ago = [max(0.0, (now - at).total_seconds()) for at in times]
    return {"busy": busy, "seconds": min(ago) if ago else None}


def tell() -> float:
    """Ask and tell once; in how many seconds again."""
    server = os.environ["JUPYTERHUB_SERVICE_URL"].rstrip("/")
    kernels = ask("GET", server + "/api/kernels?no_track_activity=1")
    try:
        terminals = ask("GET", server + "/api/terminals?no_track_activity=1")
    except urllib.error.HTTPError as problem:
        if problem.code != 404:  # a server without terminals
            raise
        terminals = []
    manager = os.environ["DLSPAWNER_MANAGER_URL"].rstrip("/")
    now = datetime.now(timezone.utc)  # noqa: UP017 - the image's python3 may be older than ours
    answer = ask("PUT", manager + "/api/kernels", report(kernels, terminals, now))
    return float(answer["seconds"])


def main() -> None:
    told = False
    while True:
        try:
            seconds = tell()
            told = True
        except Exception:  # noqa: BLE001 - any answer: a helper that ended would report nothing for ever
            seconds = USUALLY if not told else SOON
        time.sleep(min(max(seconds, 1.0), USUALLY))


if __name__ == "__main__":
    main()
