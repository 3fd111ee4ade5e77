"""JupyterHub configuration of this deployment alone, read after hub_config/jupyterhub_config.py."""


def share_cores(spawner, pod):
    """A first look has few cores: jobs reserve next to nothing of them. What they may use at most stays as it is."""
    for container in pod.spec.containers:
        if container.resources and container.resources.requests:
            container.resources.requests["cpu"] = "20m"
    return pod


c.KubeSpawner.modify_pod_hook = share_cores
