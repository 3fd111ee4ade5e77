"""What a release holds: a wheel made of the source distribution, installed and started where there is no checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.stack import ROOT, Launched, failing, running

pytestmark = pytest.mark.launcher


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr or done.stdout
    return done.stdout


def tracked(*names: str) -> set[str]:
    return set(run("git", "ls-files", *names, cwd=ROOT).splitlines())


def copied(folder: Path) -> Path:
    """The sources as they are now, without the history."""
    for name in tracked():
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def built(kind: str, source: Path, target: Path) -> Path:
    """The backend's own answer: `pip` would first download the tools that are here already."""
    made = f"from setuptools import build_meta; print('made', build_meta.build_{kind}({str(target)!r}))"
    return target / run(sys.executable, "-c", made, cwd=source).split("made ")[-1].strip()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    sources = built("sdist", copied(folder / "copy"), folder)
    run("tar", "-xzf", sources, cwd=folder)
    return built("wheel", folder / sources.name.removesuffix(".tar.gz"), folder)


def test_a_wheel_made_of_the_source_distribution_holds_every_file_of_the_product(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    shared = tracked(":(glob)templates/*/*", ":(glob)hub_config/*.yaml", ":(glob)hub_config/*.py")
    packages = {name for name in tracked("dlspawner", "ssh_gateway") if not name.endswith(".md")}
    assert found == packages | {f"dlspawner/share/{name}" for name in shared}


def test_the_version_is_the_tags_and_without_git_the_next_releases(wheel: Path, tmp_path: Path) -> None:
    assert wheel.name.startswith("dlspawner-0.1.0-")
    source = copied(tmp_path / "source")
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        run(*git, *command, cwd=source)
    untagged = built("sdist", source, tmp_path)
    assert untagged.name.startswith("dlspawner-0.1.1.dev1+g")
    run(*git, "tag", "v2.3.4", cwd=source)
    assert built("sdist", source, tmp_path).name == "dlspawner-2.3.4.tar.gz"


@dataclass
class Installed(Launched):
    """The product of an environment of its own, started by its command, in an empty directory."""

    def __post_init__(self) -> None:
        self.folder = self.state.parent

    def command(self) -> list[str]:
        return [str(self.state.parent / "venv" / "bin" / "dlspawner"), "local", *super().command()[3:]]

    @property
    def env(self) -> dict[str, str]:
        proxy = Path(sys.prefix) / "node_modules" / ".bin"
        return {**super().env, "PATH": f"{proxy}:{os.environ['PATH']}", "PYTHONPATH": ""}


@pytest.mark.slow
def test_an_installed_wheel_starts_the_product_and_its_jobs(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "venv", cwd=tmp_path)
    pip = (tmp_path / "venv" / "bin" / "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt")
    run(*pip, wheel, cwd=tmp_path)
    assert "pip install 'dlspawner[jobs]'" in failing(Installed(tmp_path / "state"))
    run(*pip, f"{wheel}[jobs]", cwd=tmp_path)
    with running(tmp_path / "state", kind=Installed) as stack:
        alice = stack.person("alice")
        alice.launch("lab", template="ipython")
        assert "JupyterLab" in alice.get("/user/alice/lab/lab").text
        assert "lab" in alice.get("/services/jobs/").text
        alice.launch("shell", template="ssh")
        assert alice.ssh(tmp_path / "ssh").run("shell", "echo $HOME").stdout.strip() == "/home/alice"
