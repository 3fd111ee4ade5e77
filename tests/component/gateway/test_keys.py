"""The gateway's own keys: made once, kept, and never readable by others."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import asyncssh
import pytest

from ssh_gateway.transport import keys as transport_keys
from ssh_gateway.transport.keys import GatewayKeys, KeysUnusable, is_strong, load_or_make

FILES = ["ssh_host_ed25519_key", "ssh_host_ed25519_key.pub", "user_ca", "user_ca.pub"]


def test_keys_are_made_once_and_kept(tmp_path: Path) -> None:
    first, second = load_or_make(tmp_path / "state"), load_or_make(tmp_path / "state")
    assert (first.host.public_data, first.user_ca.public_data) == (second.host.public_data, second.user_ca.public_data)
    public = (tmp_path / "state" / "user_ca.pub").read_bytes()
    assert public == second.user_ca.export_public_key()


def test_keys_are_readable_for_their_owner_alone(tmp_path: Path) -> None:
    load_or_make(tmp_path / "state")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "state").iterdir()}
    assert modes == dict.fromkeys(FILES, 0o600)
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


def test_concurrent_starts_use_the_same_keys(tmp_path: Path) -> None:
    found: list[GatewayKeys] = []
    threads = [threading.Thread(target=lambda: found.append(load_or_make(tmp_path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({keys.user_ca.public_data for keys in found}) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES


def test_key_readable_by_others_is_refused(tmp_path: Path) -> None:
    load_or_make(tmp_path)
    (tmp_path / "user_ca").chmod(0o644)
    with pytest.raises(KeysUnusable, match=r"user_ca can be read by others \(mode 644\)"):
        load_or_make(tmp_path)


@pytest.mark.parametrize(("mode", "used"), [(0o440, True), (0o444, False)])
def test_key_of_another_owner_may_be_readable_for_the_group(
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


def test_malformed_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "user_ca").touch(0o600)
    with pytest.raises(KeysUnusable, match="user_ca is not an OpenSSH private key"):
        load_or_make(tmp_path)


def test_unwritable_state_dir_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(KeysUnusable, match=r"setting Gateway\.state_dir"):
        load_or_make(tmp_path / "file" / "state")


def test_next_host_key_is_a_file_beside_the_present_one(tmp_path: Path) -> None:
    assert load_or_make(tmp_path).hosts == [load_or_make(tmp_path).host]
    following = asyncssh.generate_private_key("ssh-ed25519")
    (tmp_path / "ssh_host_ed25519_key.next").write_bytes(following.export_private_key())
    with pytest.raises(KeysUnusable, match="can be read by others"):
        load_or_make(tmp_path)
    (tmp_path / "ssh_host_ed25519_key.next").chmod(0o600)
    found = load_or_make(tmp_path)
    assert found.hosts == [found.host, following]
    (tmp_path / "ssh_host_ed25519_key.next").write_bytes(asyncssh.generate_private_key("ssh-rsa").export_private_key())
    with pytest.raises(KeysUnusable, match=r"is not an ed25519 key as the present one"):
        load_or_make(tmp_path)


@pytest.mark.parametrize(
    ("kind", "options", "strong"),
    [
        ("ssh-ed25519", {}, True),
        ("ecdsa-sha2-nistp256", {}, True),
        ("ecdsa-sha2-nistp521", {}, True),
        ("ssh-rsa", {"key_size": 2048}, True),
        ("ssh-rsa", {"key_size": 1024}, False),
        ("ssh-dss", {}, False),
        ("ssh-ed448", {}, False),
    ],
)
def test_key_is_strong_by_type_and_length(kind: str, options: dict[str, int], strong: bool) -> None:
    assert is_strong(asyncssh.generate_private_key(kind, **options)) is strong


async def test_server_offers_only_strong_algorithms(keys: GatewayKeys) -> None:
    options = transport_keys.server_options([keys.host], 60)
    assert options.kex_algs[0] == b"curve25519-sha256"  # what Dropbear guesses, see FACTS
    offered = [*options.kex_algs, *options.encryption_algs, *options.mac_algs, *options.signature_algs]
    assert not [name for name in offered if b"sha1" in name or b"cbc" in name or name == b"ssh-rsa"]
    assert list(options.server_host_keys) == [b"ssh-ed25519"]
    assert options.compression_algs == [b"none"]
