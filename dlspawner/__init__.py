"""JupyterHub for deep-learning clusters on Kubernetes."""

from pathlib import Path

_INSTALLED = Path(__file__).parent / "share"  # setup.py puts them there
# The directory of templates/ and hub_config/: of an installation its own, else the checkout.
ROOT = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).resolve().parents[1]
