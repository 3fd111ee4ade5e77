"""The ways into a job, as people type them."""

from __future__ import annotations

import pytest

from dlspawner.core.endpoints import Target, read_target, ssh_command


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("", None),
        ("gate.example", ("gate.example", 22)),
        ("gate.example:2222", ("gate.example", 2222)),
        ("[fd00::1]:2222", ("fd00::1", 2222)),
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
