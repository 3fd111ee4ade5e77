"""The ways into a job, as people type them."""

from __future__ import annotations

import pytest

from dlspawner.core.endpoints import Forward, Target, forward, read_target, ssh_command
from dlspawner.core.template import Endpoint, EndpointProtocol


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("", None),
        ("gate.example", ("gate.example", 22)),
        ("gate.example:2222", ("gate.example", 2222)),
        ("[fd00::1]:2222", ("fd00::1", 2222)),
        ("[fd00::1]", ("fd00::1", 22)),
    ],
)
def test_an_address_is_read_as_administrators_write_it(address: str, target: Target | None) -> None:
    assert read_target(address) == target


@pytest.mark.parametrize(
    ("user", "server", "target", "command"),
    [
        ("alice", "train", ("gate", 22), "ssh alice+train@gate"),
        ("alice", "", ("gate", 2222), "ssh -p 2222 alice@gate"),
        ("al+ice", "", ("gate", 22), "ssh al+ice+@gate"),
        ("a b;rm", "", ("gate", 22), "ssh 'a b;rm@gate'"),
        ("-oProxyCommand=id;", "", ("gate", 2222), "ssh -p 2222 -- '-oProxyCommand=id;@gate'"),
    ],
    ids=["a named server", "the default one", "a plus in the name", "a name a shell would run", "an option of ssh"],
)
def test_a_command_reaches_exactly_this_server(user: str, server: str, target: Target, command: str) -> None:
    assert ssh_command(user, server, target) == command


@pytest.mark.parametrize(
    ("user", "endpoint", "there"),
    [
        (
            "alice",
            Endpoint("board", 6006, EndpointProtocol.HTTP),
            Forward("ssh -p 2222 -L 6006:localhost:6006 alice+train@gate", "http://localhost:6006/"),
        ),
        (
            "alice",
            Endpoint("api", 80, EndpointProtocol.TCP),
            Forward("ssh -p 2222 -L 8080:localhost:80 alice+train@gate", "localhost:8080"),
        ),
        (
            "-oProxyCommand=id;",
            Endpoint("db", 1024, EndpointProtocol.TCP),
            Forward("ssh -p 2222 -L 1024:localhost:1024 -- '-oProxyCommand=id;+train@gate'", "localhost:1024"),
        ),
    ],
    ids=["a page", "a port that only root may listen at", "an option of ssh"],
)
def test_a_port_of_a_job_is_brought_to_ones_own_machine(user: str, endpoint: Endpoint, there: Forward) -> None:
    assert forward(user, "train", ("gate", 2222), endpoint) == there
