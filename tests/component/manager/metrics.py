"""A real Prometheus that scrapes, or that has a written history, which may reach into the future."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import requests

from tests.e2e.people import wait_for
from tests.harness.spawner_hub import free_port

NAMESPACE = "jobs"
STEP = timedelta(seconds=10)


def installed(name: str) -> str | None:
    """Debian's, unpacked beside this environment, or any that there is."""
    beside = Path(sys.prefix) / "debian" / "usr" / "bin"
    return shutil.which(name, path=f"{beside}:{os.environ['PATH']}")


def program(name: str) -> str:
    """The same; the test is skipped where there is none."""
    found = installed(name)
    if found is None:
        pytest.skip(f"{name} is not here: .ci/packages --unpack .venv/debian prometheus")
    return found


@dataclass(frozen=True)
class Gpu:
    """One GPU of a pod: its utilisation in percent at so many seconds after the beginning, None where there is none.

    ``instance``: a part of it in MIG mode, of which DCGM tells how busy its engines are, from 0 to 1.
    """

    pod: str
    uuid: str
    used: Callable[[float], float | None]
    memory_mib: int = 1024
    instance: str = ""


def write_history(
    folder: Path, gpus: list[Gpu], begin: datetime, end: datetime, more: Mapping[str, Sequence[str]] | None = None
) -> None:
    """Blocks of a Prometheus with the samples that dcgm-exporter would have given; ``more``: metrics and their samples.

    A sample is what OpenMetrics writes after the name.
    """
    used: dict[str, list[str]] = {"DCGM_FI_DEV_GPU_UTIL": [], "DCGM_FI_PROF_GR_ENGINE_ACTIVE": []}
    memory = []
    for gpu in gpus:
        part = f',GPU_I_ID="{gpu.instance}",GPU_I_PROFILE="1g.10gb"' if gpu.instance else ""
        labels = f'{{UUID="{gpu.uuid}"{part},namespace="{NAMESPACE}",pod="{gpu.pod}",container="notebook"}}'
        name, unit = ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 100) if part else ("DCGM_FI_DEV_GPU_UTIL", 1)
        at = begin
        while at < end:
            percent = gpu.used((at - begin).total_seconds())
            if percent is not None:
                used[name].append(f"{name}{labels} {percent / unit} {at.timestamp():.3f}")
                memory.append(f"DCGM_FI_DEV_FB_USED{labels} {gpu.memory_mib} {at.timestamp():.3f}")
            at += STEP
    text = folder / "history.txt"
    head = "# TYPE {name} gauge"
    samples_of = {**used, "DCGM_FI_DEV_FB_USED": memory}
    lines = [line for name, samples in samples_of.items() for line in (head.format(name=name), *samples)]
    for name, samples in (more or {}).items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# TYPE {name.removesuffix('_total')} {kind}", *(f"{name}{sample}" for sample in samples)]
    text.write_text("\n".join([*lines, "# EOF"]) + "\n")
    command = [program("promtool"), "tsdb", "create-blocks-from", "openmetrics", str(text), str(folder / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def measuring(folder: Path, gpus: list[Gpu], hours: int = 3) -> Iterator[str]:
    """The address of one that knows these GPUs from a moment ago on: tests may run hours later."""
    begin = datetime.now(UTC) - timedelta(minutes=5)
    write_history(folder, gpus, begin, begin + timedelta(hours=hours))
    with prometheus(folder) as url:
        yield url


@contextlib.contextmanager
def prometheus(folder: Path, port: int = 0, more: Sequence[str] = ()) -> Iterator[str]:
    """The address of one that runs; ``more``: entries of `scrape_configs`, in YAML, which are scraped once a second."""
    config = folder / "prometheus.yml"
    scrapes = [f"  - {{{one}}}" for one in more]
    scrape = ["scrape_configs:", *scrapes] if scrapes else []
    config.write_text("\n".join(["global: {scrape_interval: 1s, scrape_timeout: 1s}", *scrape]) + "\n")
    port = port or free_port()
    command = [
        program("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--web.console.templates=/nonexistent",
        "--web.console.libraries=/nonexistent",
        "--storage.tsdb.retention.time=10y",
        "--log.level=warn",
    ]
    log = folder / "prometheus.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)
    url = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(requests.RequestException):
            return requests.get(f"{url}/-/ready", timeout=5).ok
        return False

    try:
        wait_for(ready, "Prometheus", 60)
        yield url
    finally:
        process.kill()
        process.wait(30)
