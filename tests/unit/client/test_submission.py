"""Files and arguments of ``dlspawner submit``."""

from __future__ import annotations

import pytest

from dlspawner.client.submission import Malformed, changed, read


def test_file_has_server_and_options() -> None:
    found = read("server: train\noptions: {template: ipython, gpus: 2, preemptible: true}\n", "job.yaml")
    options = {"template": "ipython", "gpus": 2, "preemptible": True}
    assert found.body() == {"server": "train", "options": options}


def test_arguments_override_the_file() -> None:
    found = changed(read("server: train\noptions: {template: ipython, gpus: 2}", "f"), ["gpus=4", "x=a=b"], "")
    assert found.body() == {"server": "", "options": {"template": "ipython", "gpus": "4", "x": "a=b"}}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("a: [", "line 1 is not YAML"),
        ("[1]", "must say options"),
        ("options: {}\ngpus: 2", "has 'gpus'"),
        ("server: train", "needs options"),
        ("server: 7\noptions: {}", "must be text"),
        ("options: {gpus: [1]}", "option 'gpus'"),
        ("options: {1: 2}", "needs options"),
        ("!!python/object/apply:os.system [x]", "is not YAML"),
        ("options: {log_dir: 2026-99-99}", "is not YAML"),
        ("options: {gpus: !!bool x}", "is not YAML"),
        ("options: {day: !!timestamp x}", "is not YAML"),
        ("[" * 2000, "is not YAML"),
    ],
)
def test_malformed_file_is_refused_with_a_sentence(content: str, sentence: str) -> None:
    with pytest.raises(Malformed, match=sentence):
        read(content, "job.yaml")


def test_setting_without_a_value_is_refused() -> None:
    with pytest.raises(Malformed, match="NAME=VALUE"):
        changed(read("options: {}", "f"), ["gpus"], None)
