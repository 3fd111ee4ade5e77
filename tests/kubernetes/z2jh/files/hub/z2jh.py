"""What extraConfig may import in the Hub of zero-to-jupyterhub: values, names and secrets of the release."""

from pathlib import Path
from typing import Any

import yaml

_FOLDER = Path("/usr/local/etc/jupyterhub/secret")


def get_config(key: str, default: Any = None) -> Any:
    value = yaml.safe_load((_FOLDER / "values.yaml").read_text())
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            return default
        value = value[part]
    return value


def get_name(name: str) -> str:
    return name


def get_secret_value(key: str) -> str:
    return (_FOLDER / key).read_text()
