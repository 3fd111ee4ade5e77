"""Settings: the administrators' YAML files become values of ``dlspawner.core``, or a list of all problems.

``load`` reads all templates, the cluster and the teams, checks each and how they fit together, and either returns them
all or raises one ``InvalidConfiguration`` with every problem of every file: file, line, path, sentence. Nothing here
depends on traitlets or the Hub, so the command line, the spawner, the Manager and the gateway read the same files
alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dlspawner.core.config import DEFAULT_TEAM, ClusterConfig, TeamsConfig
from dlspawner.core.template import Template
from dlspawner.errors import InvalidConfiguration
from dlspawner.settings.cluster_file import DEFAULT, check_queues, read_cluster
from dlspawner.settings.document import Problems, read
from dlspawner.settings.teams_file import read_teams
from dlspawner.settings.template_file import read_template

__all__ = ["Settings", "Stamps", "load", "load_texts", "stamps"]

Stamps = tuple[tuple[str, int, int, int], ...]

UNCHECKED = "Until this is mended, teams and templates are not checked against this file."


@dataclass(frozen=True, slots=True)
class Settings:
    """The content of all files; the default template first, the others in the order of their files."""

    templates: tuple[Template, ...]
    cluster: ClusterConfig
    teams: TeamsConfig

    def template(self, name: str) -> Template | None:
        return next((template for template in self.templates if template.name == name), None)


def load(
    templates_dir: str | Path | None,
    cluster_file: str | Path | None = None,
    teams_file: str | Path | None = None,
    *,
    start_timeout: float | None = None,
    special_namespace: str | None = None,
) -> Settings:
    """Reads the files, ``None`` meaning no file; ``InvalidConfiguration`` has all problems.

    ``start_timeout``, the Hub's, is the time for which it waits for a job to stop: every grace period has to fit into
    it. ``special_namespace``, DLSpawner's, is the namespace of jobs with special permissions: with "" there can be no
    such jobs.
    """
    problems = Problems()
    files = _template_files(templates_dir, problems)
    roots = {file.stem: root for file in files if (root := read(file, problems)) is not None}
    names = [file.stem for file in files]
    cluster_root = read(Path(cluster_file), problems) if cluster_file is not None else None
    teams_root = read(Path(teams_file), problems) if teams_file is not None else None
    cluster = DEFAULT if cluster_root is None else read_cluster(cluster_root, names, special_namespace)
    wrong = next((index for index, problem in enumerate(problems.found) if problem.file == str(cluster_file)), None)
    problems.wrong_cluster = wrong is not None
    teams = TeamsConfig() if teams_root is None else read_teams(teams_root, cluster, names)
    if cluster_root is not None and teams_root is not None:
        check_queues(cluster_root, [DEFAULT_TEAM, *(team.name for team in teams.teams)])
    known_teams = None if teams_root is None else [team.name for team in teams.teams]
    templates = [read_template(name, root, cluster, known_teams, start_timeout) for name, root in roots.items()]
    if wrong is not None and problems.left_out:
        known = problems.found[wrong]
        problems.found[wrong] = replace(known, sentence=f"{known.sentence} {UNCHECKED}")
    if problems.found:
        raise InvalidConfiguration(problems.in_order())
    templates.sort(key=lambda template: (template.name != cluster.default_template, template.order))
    if templates_dir is not None:
        who = {one.name: one.who for one in templates}
        borrowing = frozenset(one.name for one in templates if one.option("preemptible") is not None)
        teams = replace(teams, templates=who, borrowing=borrowing)
    return Settings(tuple(templates), cluster, teams)


def load_texts(texts: Mapping[str, str], **demands: Any) -> Settings:
    """Reads the files of a stored version by their names, *cluster*, *teams* and *jobs/NAME.yaml*, as `load` does."""
    with TemporaryDirectory(prefix="dlspawner-") as folder:
        root = Path(folder)
        (root / "jobs").mkdir()
        for name, text in texts.items():
            (root / name).write_text(text, encoding="utf-8")
        return load(root / "jobs", root / "cluster", root / "teams", **demands)


def stamps(templates: Path, cluster: Path, teams: Path) -> Stamps:
    """Returns the existing files with the times of their last change, also of their rights.

    A file that is being replaced is read again.
    """
    found = []
    for file in (cluster, teams, *sorted(templates.glob("*.y*ml"))):
        try:
            status = file.stat()
        except OSError:
            found.append((file.name, 0, 0, 0))
        else:
            found.append((file.name, status.st_ctime_ns, status.st_mtime_ns, status.st_size))
    return tuple(found)


def _template_files(directory: str | Path | None, problems: Problems) -> list[Path]:
    if directory is None:
        return []
    files = sorted(file for file in Path(directory).glob("*.y*ml") if file.suffix in {".yaml", ".yml"})
    if not files:
        problems.add(str(directory), 1, "", "there is no template (a file NAME.yaml) in this directory.")
    for one, other in pairwise(files):
        if one.stem == other.stem:
            problems.add(str(other), 1, "", f"the template {one.stem} is already in {one.name}.")
    return files
