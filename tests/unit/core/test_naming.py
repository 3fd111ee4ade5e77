"""Names: valid for every reader, different for different people, and never taken from another."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kubespawner.slugs import multi_slug, safe_slug

from dlspawner.core import naming

DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
ALICE = naming.PodIdentity(
    id="j-abcdefghij23",
    user="Alice@example.org",
    server="train",
    team="Vision Lab",
    template="ipython",
    gpus=2,
    ssh_host_key="ssh-ed25519 AAAA",
    ssh_login="alice",
    log_dir="runs",
)

SLUGS = {
    "a plain name stays as it is": ("alice", "alice"),
    "a changed name ends in a hash": ("Alice", r"alice---[a-z2-7]{12}"),
    "a name that looks hashed is hashed again": ("alice---abcdefghijkl", r"alice-abcdefghijkl---[a-z2-7]{12}"),
    "the default server has a slug too": ("", r"x---[a-z2-7]{12}"),
    "a name without any usable letter": ("日本", r"x---[a-z2-7]{12}"),
    "63 characters still fit": ("a" * 63, "a" * 63),
    "64 characters are cut": ("a" * 64, r"a{48}---[a-z2-7]{12}"),
}

UNIX_NAMES = {
    "a plain name stays as it is": ("alice", "alice"),
    "an underscore may come first": ("_svc", "_svc"),
    "a digit may not": ("4you", r"u4you--[a-z2-7]{8}"),
    "a system account is not given away": ("root", r"root--[a-z2-7]{8}"),
    "a name that looks hashed is hashed again": ("bob--abcdefgh", r"bob-abcdefgh--[a-z2-7]{8}"),
    "33 characters are cut": ("a" * 33, r"a{22}--[a-z2-7]{8}"),
    "a newline after a good name": ("alice\n", r"alice--[a-z2-7]{8}"),
}

TENSORBOARDS = {
    "the default server": ("", "tb"),
    "a named server": ("train", "train-tb"),
    "the longest that fits": ("a" * 27, "a" * 27 + "-tb"),
    "one more is cut": ("a" * 28, r"a{18}-[a-z2-7]{8}-tb"),
    "an old Hub's looser name": ("My Run", r"my-run-[a-z2-7]{8}-tb"),
}

FORGERIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a user label of another user": ({naming.USER_LABEL: "bob"}, {}),
    "a server label that is another one": ({naming.SERVER_LABEL: "other"}, {}),
    "a user annotation of another user": ({}, {naming.USER_ANNOTATION: "bob"}),
    "a job id that is none": ({naming.JOB_LABEL: "j-1"}, {}),
    "a job id with a newline": ({naming.JOB_LABEL: "j-abcdefghij23\n"}, {}),
    "GPUs in other digits": ({naming.GPUS_LABEL: "٣"}, {}),
    "no number of GPUs": ({naming.GPUS_LABEL: None}, {}),
    "no user annotation": ({}, {naming.USER_ANNOTATION: None}),
}


@pytest.mark.parametrize(("name", "expected"), SLUGS.values(), ids=SLUGS)
def test_slug(name: str, expected: str) -> None:
    assert re.fullmatch(expected, naming.slug(name))


@pytest.mark.parametrize(("name", "expected"), UNIX_NAMES.values(), ids=UNIX_NAMES)
def test_unix_name(name: str, expected: str) -> None:
    assert re.fullmatch(expected, naming.unix_name(name))


@pytest.mark.parametrize(("server", "expected"), TENSORBOARDS.values(), ids=TENSORBOARDS)
def test_tensorboard_server(server: str, expected: str) -> None:
    assert re.fullmatch(expected, naming.tensorboard_server(server))


@settings(max_examples=60)
@given(st.lists(st.text(max_size=70) | st.from_regex(r"[a-z0-9-]{0,66}", fullmatch=True), unique=True, max_size=8))
def test_every_name_has_valid_names_of_its_own(names: list[str]) -> None:
    for make, pattern, longest in (
        (naming.slug, DNS_LABEL, 63),
        (naming.unix_name, re.compile(r"[a-z_][a-z0-9_-]*"), 32),
        (naming.tensorboard_server, re.compile(r"[a-z0-9-]+"), 30),
    ):
        made = [make(name) for name in names]
        assert len(set(made)) == len(names)
        assert all(pattern.fullmatch(one) and len(one) <= longest for one in made)


@settings(max_examples=40)
@given(st.text(max_size=300))
def test_hashed_name_cannot_be_chosen_by_another_user(name: str) -> None:
    taken = naming.slug(name)
    assert naming.slug(taken) != taken or taken == name
    account = naming.unix_name(name)
    assert naming.unix_name(account) != account or account == name


def test_a_job_reads_back_as_it_was_written() -> None:
    bare = replace(ALICE, server="", ssh_host_key=None, ssh_login=None, log_dir=None)
    for job in (ALICE, replace(bare, preemptible=True), replace(bare, priority="prod", requeue=True)):
        metadata = {"labels": naming.job_labels(job), "annotations": naming.job_annotations(job)}
        assert naming.read_job(metadata) == job


def test_only_preemptible_jobs_carry_the_preemption_label() -> None:
    assert "preemption" not in naming.job_labels(ALICE)
    assert naming.job_labels(replace(ALICE, preemptible=True))["preemption"] == "allow"


@pytest.mark.parametrize(("labels", "annotations"), FORGERIES.values(), ids=FORGERIES)
def test_a_pod_that_contradicts_itself_is_no_job(labels: dict[str, Any], annotations: dict[str, Any]) -> None:
    metadata = {
        "labels": {**naming.job_labels(ALICE), **labels},
        "annotations": {**naming.job_annotations(ALICE), **annotations},
    }
    assert naming.read_job(metadata) is None


@pytest.mark.parametrize("metadata", [{}, {"labels": None}, {"labels": [], "annotations": "x"}])
def test_a_pod_that_is_not_ours_is_no_job(metadata: dict[str, Any]) -> None:
    assert naming.read_job(metadata) is None


def test_a_nonce_is_bound_to_one_pod_and_no_annotation_breaks_the_look() -> None:
    told = naming.sign("n", "jobs/p")
    assert naming.verify(told, "n", "jobs/p")
    assert not any(naming.verify(told, *one) for one in (("m", "jobs/p"), ("n", "special/p"), ("\ud800", "jobs/p")))


def test_a_job_id_is_made_of_the_bytes_it_is_given() -> None:
    assert re.fullmatch(r"j-[a-z2-7]{12}", naming.job_id(b"\x00\xff" * 4))
    assert naming.job_id(b"12345678") != naming.job_id(b"12345668")
    with pytest.raises(ValueError, match="8 random bytes"):
        naming.job_id(b"short")


def test_selectors_select_by_slug() -> None:
    assert naming.server_selector("alice", "train") == "dlspawner.dev/user=alice,dlspawner.dev/server=train"
    assert naming.user_selector("alice") == "dlspawner.dev/user=alice"
    assert naming.job_selector("j-abcdefghij23") == "dlspawner.dev/job=j-abcdefghij23"


def test_the_ssh_object_of_a_long_pod_name_is_still_a_dns_label() -> None:
    assert naming.ssh_object("jupyter-alice--train") == "jupyter-alice--train-ssh"
    long = naming.ssh_object("jupyter-" + "a" * 80)
    assert len(long) <= 63
    assert DNS_LABEL.fullmatch(long)
    assert long != naming.ssh_object("jupyter-" + "a" * 81)


@settings(max_examples=60)
@given(st.from_regex(r"[aA-]{1,60}", fullmatch=True), st.from_regex(r"[aA-]{0,60}", fullmatch=True))
def test_no_other_server_has_a_pod_of_the_name_of_a_further_pod(user: str, server: str) -> None:
    """``ann`` with a job of several pods, and another user ``ann-worker-0``, or her own server ``worker-0``."""
    slugs = [safe_slug(name, max_length=48) for name in (user, server) if name]
    for own in ("--".join(slugs), multi_slug([user, server])):  # KubeSpawner's user_server
        assert naming.further_pod("jupyter-ann", "worker-0") == "jupyter-ann----worker-0"
        assert "----" not in f"jupyter-{own}"
