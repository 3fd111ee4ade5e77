"""What of a pod is read for its logs."""

from __future__ import annotations

import pytest

from dlspawner.manager.logs.sources import read_source

VALUE = "0123456789abcdef"
VARIABLES = {
    "JUPYTERHUB_API_TOKEN": (VALUE, True),
    "MY_PASSWORD": (VALUE, True),
    "WANDB_API_KEY": (VALUE, True),
    "GREETING": ("good morning", False),
    "TOKEN_FILE": ("/run/token", False),
    "SECRETS_ALLOWED": ("true", False),
}


@pytest.mark.parametrize("name", VARIABLES)
def test_variables_that_sound_secret_are_known_unless_they_are_paths_or_words(name: str) -> None:
    value, secret = VARIABLES[name]
    spec = {"containers": [{"name": "notebook", "env": [{"name": name, "value": value}]}]}
    found = read_source({"metadata": {"uid": "u", "name": "p"}, "spec": spec})
    assert found.secrets == ((value.encode(),) if secret else ())
