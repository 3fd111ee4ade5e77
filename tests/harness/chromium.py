"""Debian's Chromium as the tests drive it, and their patience: several browsers and Hubs may share two cores."""

from __future__ import annotations

from typing import Any

from playwright import async_api, sync_api

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 90_000  # milliseconds: until a page is there, or is as expected
LAUNCH: dict[str, Any] = {"executable_path": CHROMIUM, "args": FLAGS, "timeout": 2 * PATIENCE}

async_api.expect.set_options(timeout=PATIENCE)
sync_api.expect.set_options(timeout=PATIENCE)
