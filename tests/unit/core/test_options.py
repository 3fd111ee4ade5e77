"""Options: what a person may choose; every wrong choice is a sentence, never an exception."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlspawner.core.config import CpuMemory, GpuType, Team
from dlspawner.core.launch.options import (
    BUILT_IN,
    InvalidOptions,
    SelectedOptions,
    check_value,
    find_template,
    offered_options,
    select_options,
    usable_templates,
)
from dlspawner.core.template import Endpoint, EndpointProtocol, Option, OptionKind, PodRole, Template
from tests.unit.core.builders import A100, CLUSTER, GIB, LANGUAGE, MI300, NOTEBOOK, VISION, chosen

ACCEPTED: dict[str, tuple[dict[str, Any], str, Any]] = {
    "nothing given takes the defaults": ({}, "gpus", 1),
    "a form's string is a number": ({"gpus": "2"}, "gpus", 2),
    "an empty field is not given": ({"gpus": ""}, "gpus", 1),
    "no GPU at all": ({"gpus": 0}, "gpus", 0),
    "an option without default stays empty": ({}, "note", None),
    "text over several lines where it may be": ({"note": "a\nb"}, "note", "a\nb"),
    "line ends of a browser's form, of Windows, of old files": (
        {"note": "set -e\r\na\rb\r\n"},
        "note",
        "set -e\na\nb\n",
    ),
    "the most letters, counted without them": ({"note": "\r\n" * 4096}, "note", "\n" * 4096),
    "text with blanks around": ({"note": " a "}, "note", " a "),
    "a path with blanks and a line end around": ({"log_dir": "\xa0runs \r\n"}, "log_dir", "runs"),
    "nothing but blanks": ({"memory": " "}, "memory", None),
    "text that looks like YAML, placeholders and shell is text": ({"note": "${x}: [$(id)]"}, "note", "${x}: [$(id)]"),
    "a number with a point": ({"rate": "0.5"}, "rate", 0.5),
    "a ticked box": ({"fast": "on"}, "fast", True),
    "an empty box": ({"fast": "false"}, "fast", False),
    "an amount of memory": ({"memory": "8Gi"}, "memory", "8Gi"),
    "an amount of CPU as JSON": ({"cpu": 2}, "cpu", "2"),
    "bytes as a number with a point": ({"memory": 1073741824.0}, "memory", "1073741824.0"),
}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "too many GPUs": ({"gpus": 9}, "GPUs must be between 0 and 8; you asked for 9."),
    "fewer than none": ({"gpus": "-1"}, "GPUs must be between 0 and 8; you asked for -1."),
    "more than one job may have of this type": (
        {"gpus": 8, "gpu_type": "mi300"},
        "GPUs of type mi300 must be at most 4; you asked for 8.",
    ),
    "true is no number": ({"gpus": True}, "GPUs must be a whole number between 0 and 8; you gave true."),
    "digits of another script": ({"gpus": "٢"}, "GPUs must be a whole number between 0 and 8; you gave “٢”."),
    "a number too long to read": ({"gpus": "9" * 4000}, "GPUs must be a whole number between 0 and 8; you gave “999"),
    "a list": ({"gpus": ["2"]}, "GPUs must be one plain value, not a list."),
    "an object": ({"note": {"a": 1}}, "Note must be one plain value, not an object."),
    "a GPU type that is not there": ({"gpu_type": "h100"}, "GPU type must be one of a100, mi300; you chose “h100”."),
    "an unknown option": ({"gpuz": 1}, "“Notebook” has no option “gpuz” (did you mean gpus?)."),
    "too much CPU for the GPUs": ({"gpus": 2, "cpu": "9"}, "CPUs must be between 100m and 8 for 2 × a100; you asked"),
    "too much memory": (
        {"memory": "17Gi"},
        "Memory must be between 64 MiB and 16 GiB for 1 × a100; you asked for 17 GiB.",
    ),
    "a number, in bytes": (
        {"memory": 21474836480.0},
        "Memory must be between 64 MiB and 16 GiB for 1 × a100; you asked for 20 GiB.",
    ),
    "too little, with an exponent": (
        {"cpu": "1e-3"},
        "CPUs must be between 100m and 4 for 1 × a100; you asked for 1m.",
    ),
    "too large a number": ({"rate": "1234567.5"}, "Learning rate must be between 0 and 1; you gave 1234567.5."),
    "too large a number, as it was typed": ({"rate": "1e7"}, "Learning rate must be between 0 and 1; you gave 1e7."),
    "more than there are numbers": ({"gpus": 2**60}, f"GPUs must be between 0 and 8; you asked for {2**60}."),
    "an amount that is none": ({"memory": "lots"}, "Memory must be an amount such as 4, 500m or 16Gi; you gave “lots”"),
    "a NUL": ({"note": "a\0b"}, "Note must be printable text."),
    "text that is written backwards": ({"note": "a\u202eb"}, "Note must be printable text."),
    "a second line where one is asked": ({"log_dir": "a\nb"}, "Log directory must be one line of printable text."),
    "a way out of the home directory": ({"log_dir": "a/../../b"}, "Log directory must not contain “..”; you gave"),
    "too long": ({"note": "x" * 5000}, "Note must be at most 4096 characters long; yours has 5000."),
    "more than the pattern": ({"code": "abcd"}, "Code must match [a-z]{3}; you gave “abcd”."),
    "a newline behind the pattern": ({"code": "abc\n"}, "Code must be one line of printable text."),
    "NaN": ({"rate": float("nan")}, "Learning rate must be a number between 0 and 1; you gave nan."),
    "neither yes nor no": ({"fast": "maybe"}, "Fast must be yes or no; you gave “maybe”."),
    "a number for text": ({"note": 5}, "Note must be text; you gave 5."),
    "another team": ({"team": "language"}, "Team must be one of vision; you chose “language”."),
}


@pytest.mark.parametrize(("wishes", "name", "expected"), ACCEPTED.values(), ids=ACCEPTED)
def test_a_good_choice_is_taken(wishes: dict[str, Any], name: str, expected: Any) -> None:
    found = chosen(of=[VISION], **wishes).get(name)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(("wishes", "sentence"), REFUSED.values(), ids=REFUSED)
def test_a_bad_choice_is_a_sentence(wishes: dict[str, Any], sentence: str) -> None:
    rejected = select_options(NOTEBOOK, CLUSTER, wishes, [VISION])
    assert isinstance(rejected, InvalidOptions)
    assert len(rejected.sentences) == 1
    assert rejected.sentences[0].startswith(sentence)


PATHS = [
    *(".", "~", "~/runs", "/data/a b", "backup~", "a~b/c", "20$", "a:b"),
    *("s3://bucket/runs", "gs://b", "hdfs:///runs", "abfss://c@a.net/x"),
]
NO_PATHS = [
    *(
        "~bob/runs",
        "$HOME/x",
        "${HOME}/x",
        "runs/$USER",
        "$(pwd)",
        "/data/s3://x",
        "https://x.org/runs",
        "file:///data",
    ),
    *("S3://b/x", "s3://", "s3://b/../x", "s3://b/$USER"),
]


@pytest.mark.parametrize("path", PATHS + NO_PATHS)
def test_a_path_means_the_same_without_a_shell(path: str) -> None:
    problem = check_value(BUILT_IN["log_dir"], path)
    assert (problem is None) == (path in PATHS), problem


def test_a_path_is_refused_with_what_would_work() -> None:
    data = Option("data", OptionKind.PATH, "Data")
    works = "must be a path such as runs, ~/runs or /data/runs, without $VARIABLES and other people's ~"
    assert check_value(data, "s3://b/x") == f"Data {works}; you gave “s3://b/x”."
    store = "or an object store's address such as s3://bucket/runs"
    assert check_value(BUILT_IN["log_dir"], "$HOME/x") == f"Log directory {works}, {store}; you gave “$HOME/x”."


SHA = {name: f"x/y:1@{name}:{'0a' * (bits // 8)}" for name, bits in (("sha256", 256), ("sha384", 384), ("sha512", 512))}
IMAGES = [
    *("debian", "debian:12", "library/debian", "a__b/c-d--e.f_g", "localhost/x", "127.0.0.1/x", *SHA.values()),
    *("Registry.Example.ORG:5000/team/x:T_1.2-3", "LAB/x", "[::1]:5000/x", "[FD00::a]/x/y"),
]
NO_IMAGES = [
    *(
        "Debian",
        "registry.org/Team/x",
        "a..b",
        "a/",
        "/a",
        "a:",
        "a b",
        "-a/b",
        "a-.b/c",
        "[::1",
        "[::1]",
        "a:0/",
        "ü/x",
    ),
    *("https://registry.org/x", "x:" + "t" * 129, "x@sha256:1", SHA["sha256"].upper(), SHA["sha512"][:-1]),
]


@pytest.mark.parametrize("name", IMAGES + NO_IMAGES, ids=lambda name: name[:24])
def test_an_image_is_what_a_container_runtime_takes(name: str) -> None:
    problem = check_value(BUILT_IN["image"], name)
    assert (problem is None) == (name in IMAGES), problem
    if name in {"Debian", "registry.org/Team/x", "a..b"}:
        assert ("its repository in lower case" in str(problem)) is (name != "a..b")


@pytest.mark.parametrize(
    ("port", "sentences"),
    [
        (8000, None),
        (8888, ("HTTP port must not be 8888: the job answers the Hub there.",)),
        (2222, ("HTTP port must not be 2222: the job's sshd listens there.",)),
        (80, ("HTTP port must be between 1024 and 65535; you asked for 80.",)),
    ],
)
def test_the_person_s_web_server_is_not_where_the_job_itself_listens(port: int, sentences: Any) -> None:
    endpoints = (Endpoint("ssh", 2222, EndpointProtocol.SSH),)
    template = replace(NOTEBOOK, options=(BUILT_IN["http_port"],), endpoints=endpoints)
    found = select_options(template, CLUSTER, {"http_port": port}, [VISION], notebook_port=8888)
    assert found == InvalidOptions(sentences) if sentences else isinstance(found, SelectedOptions)


def test_all_wrong_choices_are_listed_together() -> None:
    rejected = select_options(NOTEBOOK, CLUSTER, {"gpus": 99, "size": "xl", "typo": 1})
    assert isinstance(rejected, InvalidOptions)
    assert len(rejected.sentences) == 3


SHARES: dict[str, tuple[dict[str, Any], GpuType | None, CpuMemory]] = {
    "without GPUs": ({"gpus": 0}, None, CpuMemory(500, GIB)),
    "the first type is the default": ({"gpus": 2}, A100, CpuMemory(8000, 32 * GIB)),
    "another type": ({"gpus": 2, "gpu_type": "mi300"}, MI300, CpuMemory(16000, 64 * GIB)),
    "less CPU": ({"gpus": 2, "cpu": "500m"}, A100, CpuMemory(500, 32 * GIB)),
}


@pytest.mark.parametrize(("wishes", "kind", "amount"), SHARES.values(), ids=SHARES)
def test_cpu_and_memory_come_with_the_gpus(wishes: dict[str, Any], kind: GpuType | None, amount: CpuMemory) -> None:
    choices = chosen(**wishes)
    assert (choices.gpu_type, choices.amount) == (kind, amount)


def test_a_templates_own_default_gives_way_to_a_small_share() -> None:
    assert chosen(_with(NOTEBOOK, "cpu", default="16"), gpus=0).amount.cpu_milli == 4000


def test_a_templates_maximum_narrows_the_clusters() -> None:
    narrow = _with(NOTEBOOK, "gpus", maximum=2)
    assert next(option for option in offered_options(narrow, CLUSTER) if option.name == "gpus").maximum == 2
    rejected = select_options(narrow, CLUSTER, {"gpus": 3})
    assert rejected == InvalidOptions(("GPUs must be between 0 and 2; you asked for 3.",))


def test_a_cluster_without_gpus_offers_none() -> None:
    bare = replace(CLUSTER, gpu_types=())
    choices = chosen(cluster=bare)
    assert (choices.gpus, choices.gpu_type) == (0, None)
    assert select_options(NOTEBOOK, bare, {"gpus": 1}) == InvalidOptions(
        ("GPUs must be between 0 and 0; you asked for 1.",)
    )


def test_the_first_team_pays_unless_another_is_chosen() -> None:
    teams = [VISION, LANGUAGE]
    assert (chosen(of=teams).team, chosen(of=teams, team="language").team) == ("vision", "language")


def test_choices_read_back_from_the_user_options_that_the_hub_keeps() -> None:
    first = chosen(of=[VISION], gpus="2", note="x", fast="on")
    assert select_options(NOTEBOOK, CLUSTER, first.user_options(), [VISION]) == first


def test_each_role_of_a_job_of_several_pods_has_its_number_and_its_share() -> None:
    option = Option("workers", OptionKind.INTEGER, "Workers", maximum=8, default=2)
    roles = (
        PodRole("chief"),
        PodRole("worker", "workers"),
        PodRole("ps", 1, gpus=0, memory=Fraction(2**30)),
        PodRole("big", 1, gpus=9),
    )
    several = replace(NOTEBOOK, options=(*NOTEBOOK.options, option), roles=roles[:3])

    chief, worker, ps = chosen(several, gpus=2, workers=3).roles
    assert (chief.name, chief.count, chief.gpus) == ("chief", 1, 2)
    assert (worker.name, worker.count, worker.gpus, worker.amount) == ("worker", 3, 2, chief.amount)
    assert (ps.count, ps.gpus, ps.amount) == (1, 0, replace(CLUSTER.cpu_only_default, memory_bytes=2**30))
    assert [role.name for role in chosen(several, workers=0).roles] == ["chief", "ps"]
    elastic = replace(several, roles=(roles[0], replace(roles[1], least=2)))
    assert [chosen(elastic, workers=workers).roles[1].least for workers in (1, 2, 3)] == [1, 2, 2]

    free = replace(several, options=(*NOTEBOOK.options, replace(option, maximum=None)))
    for workers in (-1, 257, 10**12):
        said = f"The number of pods “worker” must be between 0 and 256; you asked for {workers}."
        assert select_options(free, CLUSTER, {"gpus": 1, "workers": workers}) == InvalidOptions((said,))

    rejected = select_options(replace(several, roles=roles), CLUSTER, {"gpus": 1})
    assert rejected == InvalidOptions(("Each pod “big” asks for 9 GPUs; 8 of type a100 are the most.",))
    rejected = select_options(replace(several, roles=roles), CLUSTER, {"gpus": 0})
    said = "Each pod “big” has 9 GPUs, so the first one needs GPUs too: ask for one at least."
    assert rejected == InvalidOptions((said,))


def test_the_template_is_found_by_name_or_by_default() -> None:
    other = replace(NOTEBOOK, name="other", title="Other")
    both = [NOTEBOOK, other]
    assert find_template(both, {}) == NOTEBOOK
    assert find_template(both, {"template": ""}, default="other") == other
    assert find_template(both, {"template": "other"}) == other


@pytest.mark.parametrize(
    ("name", "shown"), [(7, "7"), (["notebook"], "a list"), ({}, "an object"), (True, "true")], ids=repr
)
def test_a_template_that_is_no_name_is_a_sentence(name: object, shown: str) -> None:
    said = InvalidOptions((f"The job template must be a name, not {shown}.",))
    assert find_template([NOTEBOOK], {"template": name}) == said


@pytest.mark.parametrize("name", ["notebok", "../notebook", "NOTEBOOK"])
def test_an_unknown_template_is_a_sentence_that_names_yours(name: object) -> None:
    rejected = find_template([NOTEBOOK], {"template": name})
    assert isinstance(rejected, InvalidOptions)
    assert rejected.sentences[0].startswith("There is no job template")
    assert rejected.sentences[0].endswith("Yours: notebook.")


def test_a_template_is_for_its_teams_and_a_team_has_its_templates() -> None:
    private = replace(NOTEBOOK, name="private", who=("vision",))
    assert usable_templates([NOTEBOOK, private], [VISION]) == (NOTEBOOK, private)
    assert usable_templates([NOTEBOOK, private], [LANGUAGE]) == (NOTEBOOK,)
    assert usable_templates([private], [Team("default")]) == ()
    rejected = find_template([NOTEBOOK, private], {"template": "private"}, [LANGUAGE])
    assert isinstance(rejected, InvalidOptions)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=60),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from([option.name for option in NOTEBOOK.options]) | st.text(max_size=12), _JSON))
def test_any_json_is_selected_or_refused(wishes: dict[str, Any]) -> None:
    choices = select_options(NOTEBOOK, CLUSTER, wishes, [VISION])
    if isinstance(choices, InvalidOptions):
        assert all(sentence.isprintable() and len(sentence) < 400 for sentence in choices.sentences)
    else:
        assert 0 <= choices.gpus <= 8
        assert 0 < choices.amount.cpu_milli <= 64000


def _with(template: Template, name: str, **changes: Any) -> Template:
    def change(option: Option) -> Option:
        return replace(option, **changes) if option.name == name else option

    return replace(template, options=tuple(change(option) for option in template.options))
