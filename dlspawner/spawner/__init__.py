"""DLSpawner: KubeSpawner with job templates. ``c.JupyterHub.spawner_class = "dlspawner.spawner.DLSpawner"``."""

from dlspawner.spawner.kube.errors import StartRefused
from dlspawner.spawner.spawner import DLSpawner

__all__ = ["DLSpawner", "StartRefused"]
