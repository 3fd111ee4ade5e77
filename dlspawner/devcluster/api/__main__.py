"""`python -m dlspawner.devcluster.api --state DIR [--port N]`: the API server alone, until SIGINT or SIGTERM."""

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

from dlspawner.devcluster.api import StateInUse, start


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m dlspawner.devcluster.api", description="Embedded API server")
    parser.add_argument("--state", type=Path, required=True, help="directory of its objects, certificates, kubeconfig")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1 (0: a free one)")
    parser.add_argument("--verbose", action="store_true", help="log every request")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.DEBUG if options.verbose else logging.INFO)
    try:
        asyncio.run(_serve(options.state, options.port))
    except StateInUse as error:
        sys.exit(str(error))
    except OSError as error:
        sys.exit(f"cannot listen on port {options.port}: {error.strerror} (choose another with --port)")
    return 0


async def _serve(state: Path, port: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    api = await start(state, port)
    sys.stdout.write(f"API server ready: {api.url} KUBECONFIG={api.kubeconfig}\n")
    sys.stdout.flush()
    await stop.wait()
    await api.stop()


if __name__ == "__main__":
    sys.exit(main())
