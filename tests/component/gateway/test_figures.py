"""The benchmark of the relay still measures what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import gateway


@pytest.mark.slow
def test_every_figure_of_the_relay_can_be_measured(tmp_path: Path) -> None:
    figures = {figure.name: figure.value for figure in gateway.measure(tmp_path / "lab", gateway.QUICK)}
    ways = [
        f"SSH {way}, {cipher}" for way in ("up", "down") for cipher in ("aes128-gcm", "aes256-ctr", "chacha20-poly1305")
    ]
    crowds = [f"SSH {way}, 3 at once, 2 gateways" for way in ("up", "down")]
    copies = [f"{title}: ratio to {peer}" for title in (*ways, *crowds) for peer in gateway.PEERS]
    echoes = [f"SSH echo {part} while another downloads" for part in ("p50", "p99")]
    assert {*copies, *echoes, "SSH connection set-up: ratio to direct"} <= set(figures)
    assert {f"{title}: gateway's processor time" for title in ways} <= set(figures)
    floors = [f"TCP relay {way}, aes128-gcm: ratio to direct" for way in ("up", "down")]
    assert {*floors, "TCP relay, echo p50: ratio to OpenSSH -J", "SSH ciphers alone, aes256-ctr and aes128-gcm"} <= set(
        figures
    )
    assert all(figures[name] > 0 for name in (*copies, *echoes))
    assert "SSH gateway's memory for each of 20 idle" in figures
