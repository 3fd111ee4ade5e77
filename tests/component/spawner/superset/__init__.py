"""Without templates, teams and Manager, DLSpawner is KubeSpawner: the same spawn, recorded of both and compared."""
