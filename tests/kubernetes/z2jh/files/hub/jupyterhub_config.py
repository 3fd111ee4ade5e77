"""What zero-to-jupyterhub sets of the values that the chart or its tests name, in the same order."""

import sys
from pathlib import Path

c = get_config()  # noqa: F821 - traitlets'
sys.path.insert(0, str(Path(__file__).parent))

from z2jh import get_config, get_name, get_secret_value  # noqa: E402

VALUES = {
    "JupyterHub.base_url": "hub.baseUrl",
    "JupyterHub.concurrent_spawn_limit": "hub.concurrentSpawnLimit",
    "JupyterHub.allow_named_servers": "hub.allowNamedServers",
    "JupyterHub.redirect_to_server": "hub.redirectToServer",
    "Spawner.consecutive_failure_limit": "hub.consecutiveFailureLimit",
    "KubeSpawner.start_timeout": "singleuser.startTimeout",
    "KubeSpawner.uid": "singleuser.uid",
    "KubeSpawner.fs_gid": "singleuser.fsGid",
    "KubeSpawner.mem_guarantee": "singleuser.memory.guarantee",
    "KubeSpawner.profile_list": "singleuser.profileList",
}

c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
c.ConfigurableHTTPProxy.api_url = f"http://{get_name('proxy-api')}:8001"
c.ConfigurableHTTPProxy.should_start = False
c.JupyterHub.cleanup_servers = False
c.JupyterHub.last_activity_interval = 60
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 0}
c.JupyterHub.db_url = "sqlite:///jupyterhub.sqlite"
c.JupyterHub.hub_bind_url = "http://:8081"
c.JupyterHub.hub_connect_url = f"http://{get_name('hub')}:8081"
c.KubeSpawner.common_labels = {"app.kubernetes.io/name": "jupyterhub", "app.kubernetes.io/managed-by": "kubespawner"}
for name, key in VALUES.items():
    if (value := get_config(key)) is not None:
        section, _, trait = name.partition(".")
        c[section][trait] = value
c.KubeSpawner.image = f"{get_config('singleuser.image.name')}:{get_config('singleuser.image.tag')}"
c.JupyterHub.services, c.JupyterHub.load_roles = [], []
for name, service in get_config("hub.services").items():
    token = get_secret_value(f"hub.services.{name}.apiToken")
    c.JupyterHub.services.append({"name": name, **service, "api_token": token})
c.JupyterHub.load_roles.extend({"name": name, **role} for name, role in get_config("hub.loadRoles").items())
c.JupyterHub.cookie_secret = get_secret_value("hub.config.JupyterHub.cookie_secret")
c.CryptKeeper.keys = [get_secret_value("hub.config.CryptKeeper.keys")]
for section, traits in get_config("hub.config").items():
    c[section].update(traits)
for _, text in sorted(get_config("hub.extraConfig").items()):
    exec(text)  # noqa: S102 - as it does
