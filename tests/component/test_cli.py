"""The command line: what it prints and how it ends."""

from __future__ import annotations

import runpy
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from dlspawner import cli
from dlspawner.local.state import parse
from dlspawner.spawner.kube import errors

ROOT = Path(__file__).parents[2]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"dlspawner {version('dlspawner')}\n"


def test_validate_counts_valid_files(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert cli.main(["validate"]) == 0
    count = len(list((ROOT / "templates" / "jobs").glob("*.yaml")))
    assert capsys.readouterr().out == f"ok: {count} templates, 2 GPU types, 3 teams\n"


def test_validate_prints_every_problem(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("title: 1\ncommand: x\n", encoding="utf-8")
    cluster, teams = tmp_path / "cluster", tmp_path / "teams"
    cluster.write_text("gpu_type: {}\n", encoding="utf-8")
    teams.write_text("teams: {vision: {quota: {a100: 1}}}\n", encoding="utf-8")
    code = cli.main(["validate", f"--templates={tmp_path}", f"--cluster={cluster}", f"--teams={teams}"])
    printed = capsys.readouterr()
    assert code == 1
    assert [line.split(": ")[:2] for line in printed.out.splitlines()] == [
        [f"{cluster}:1", "gpu_type"],
        [f"{tmp_path}/one.yaml:1", "title"],
        [f"{tmp_path}/one.yaml:1", "."],
        [f"{tmp_path}/one.yaml:2", "command"],
    ]
    assert printed.err == "4 problems\n"


def test_validate_with_a_start_timeout(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert cli.main(["validate", "--start-timeout=80"]) == 1
    assert "custom.yaml" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("scheduler", "teams", "given", "code", "said"),
    [
        ("kueue", "hub_config/teams.yaml", ["--namespace=jobs", "--dry-run"], 0, "name: team-vision-preemptible"),
        ("native", "hub_config/teams.yaml", ["--namespace=jobs"], 1, "cluster.yaml has another scheduler"),
        ("kueue", "", ["--namespace=jobs"], 1, "teams.yaml has no quota"),
        ("kueue", "hub_config/teams.yaml", [], 1, "Name the namespace of the jobs"),
        ("kueue", "hub_config/teams.yaml", ["--namespace=jobs", "--kubeconfig=/none"], 1, "Kueue could not be told"),
        ("kueu", "hub_config/teams.yaml", ["--namespace=jobs"], 1, "must be one of native, kueue"),
    ],
)
def test_kueue_apply(  # noqa: PLR0917 - the columns of a table
    scheduler: str,
    teams: str,
    given: list[str],
    code: int,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    cluster, none = tmp_path / "cluster.yaml", tmp_path / "teams.yaml"
    cluster.write_text(f"{(ROOT / 'hub_config' / 'cluster.yaml').read_text()}scheduler: {{name: {scheduler}}}\n")
    none.write_text("teams: {vision: {}, language: {}, robotics: {}}\n")
    assert cli.main(["kueue", "apply", f"--cluster={cluster}", f"--teams={teams or none}", *given]) == code
    printed = capsys.readouterr()
    assert said in (printed.err if code else printed.out)


@pytest.mark.parametrize(("counts", "code"), [(True, 1), (False, 0)])
def test_validate_with_a_failure_limit(
    counts: bool, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(errors, "COUNTS_REFUSALS", counts)
    assert cli.main(["validate", "--consecutive-failure-limit=5"]) == code
    assert ("consecutive_failure_limit is 5 and must be 0" in capsys.readouterr().out) is counts


@pytest.mark.parametrize("arguments", [[], ["validate", "--nonsense"]])
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert "usage: dlspawner" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--port=99999", "--ssh-port=0"])
def test_an_invalid_port_is_an_error(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse([option])
    assert ended.value.code == 2
    assert f"{option.partition('=')[2]} is no port: 1 to 65535" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "module"), [("local", "dlspawner.local"), ("devcluster", "dlspawner.devcluster")])
def test_other_programs_get_their_own_arguments(name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(sys, "argv", ["dlspawner"])
    monkeypatch.setattr(runpy, "run_module", lambda module, **_: started.append((module, sys.argv[1:])))
    assert cli.main([name, "--help", "--port=0"]) == 0
    assert started == [(module, ["--help", "--port=0"])]
