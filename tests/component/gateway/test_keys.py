"""The gateway's own keys: made once, kept, and never readable by others."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from ssh_gateway.transport.keys import GatewayKeys, KeysUnusable, load_or_make

FILES = ["ssh_host_ed25519_key", "ssh_host_ed25519_key.pub", "user_ca", "user_ca.pub"]


def test_keys_are_made_once_and_kept(tmp_path: Path) -> None:
    first, second = load_or_make(tmp_path / "state"), load_or_make(tmp_path / "state")
    assert (first.host.public_data, first.user_ca.public_data) == (second.host.public_data, second.user_ca.public_data)
    public = (tmp_path / "state" / "user_ca.pub").read_bytes()
    assert public == second.user_ca.export_public_key()


def test_nobody_else_can_read_them(tmp_path: Path) -> None:
    load_or_make(tmp_path / "state")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "state").iterdir()}
    assert modes == dict.fromkeys(FILES, 0o600)
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


def test_of_many_who_start_at_once_all_use_the_same(tmp_path: Path) -> None:
    found: list[GatewayKeys] = []
    threads = [threading.Thread(target=lambda: found.append(load_or_make(tmp_path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({keys.user_ca.public_data for keys in found}) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES


def test_a_key_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    load_or_make(tmp_path)
    (tmp_path / "user_ca").chmod(0o644)
    with pytest.raises(KeysUnusable, match=r"user_ca can be read by others \(mode 644\)"):
        load_or_make(tmp_path)


@pytest.mark.parametrize(("mode", "used"), [(0o440, True), (0o444, False)])
def test_a_key_that_is_not_ours_may_be_readable_for_our_group(
    mode: int, used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a Secret that Kubernetes mounts for a pod's fsGroup."""
    load_or_make(tmp_path)
    (tmp_path / "user_ca").chmod(mode)
    (tmp_path / "ssh_host_ed25519_key").chmod(mode)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    if used:
        load_or_make(tmp_path)
    else:
        with pytest.raises(KeysUnusable, match="can be read by others"):
            load_or_make(tmp_path)


def test_what_is_no_key_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "user_ca").touch(0o600)
    with pytest.raises(KeysUnusable, match="user_ca is not an OpenSSH private key"):
        load_or_make(tmp_path)


def test_a_place_where_nothing_can_be_written_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(KeysUnusable, match=r"setting Gateway\.state_dir"):
        load_or_make(tmp_path / "file" / "state")
