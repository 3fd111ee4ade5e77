"""Wiring of the Hub: which parts there are and where they find each other. cluster.yaml and teams.yaml decide.

Everything that differs between machines, and every secret, comes from the environment, which `dlspawner.local` (on one
machine) or hub_config/kubernetes (in a cluster) sets. What else a deployment wants, above all its own authenticator, is
JupyterHub configuration in the file overrides.py beside cluster.yaml, read last. Works with JupyterHub 5.5 and 6.x.
"""

import logging
import os
import sys
from functools import cache, partial
from pathlib import Path
from urllib.parse import urlsplit

from jupyterhub import orm
from jupyterhub.app import JupyterHub

from dlspawner.errors import InvalidConfiguration
from dlspawner.settings import reload
from dlspawner.spawner import DLSpawner, configuration
from dlspawner.spawner.manager_link import good_files

env = os.environ
config_dir = Path(env["DLSPAWNER_CONFIG_DIR"])
templates = Path(env["DLSPAWNER_TEMPLATES"])
overrides = config_dir / "overrides.py"

# In the Hub of zero-to-jupyterhub (helm/) addresses, services and roles are set already.
alone = "DLSPAWNER_HUB_DB_URL" in env
# JupyterHub.base_url: everything is below it, also between the Hub and the Manager.
base = urlsplit(env["DLSPAWNER_BIND_URL"]).path if alone else c.JupyterHub.get("base_url", "/")
manager_url = f"{env['DLSPAWNER_MANAGER_URL']}/{base.strip('/')}".rstrip("/") + "/services/jobs"
stored = cache(partial(good_files, manager_url, env["DLSPAWNER_MANAGER_TOKEN"], logging.getLogger("dlspawner.spawner")))


def good(files, **demands):
    """The files, or their last good version; without one all problems of all of them, before anything starts."""
    try:
        return reload.current_config(*map(str, files)).demand(stored, **demands)
    except InvalidConfiguration as wrong:
        sys.exit(str(wrong))


wanted = good((templates, config_dir / "cluster.yaml", config_dir / "teams.yaml"))

# The Hub and its proxy. The proxy is a process of its own, so that a restart of the Hub cuts no connection.
if alone:
    c.JupyterHub.bind_url = env["DLSPAWNER_BIND_URL"]
    c.JupyterHub.hub_bind_url = env.get("DLSPAWNER_HUB_BIND_URL") or env["DLSPAWNER_HUB_URL"]  # where it listens
    c.JupyterHub.hub_connect_url = env["DLSPAWNER_HUB_URL"]  # what jobs remember: it must never change
    c.ConfigurableHTTPProxy.should_start = False
    c.ConfigurableHTTPProxy.api_url = env["DLSPAWNER_PROXY_API_URL"]
    c.JupyterHub.db_url = env["DLSPAWNER_HUB_DB_URL"]
    c.JupyterHub.upgrade_db = True  # as the Manager does with its own
# Secure cookies depend on it: what an ingress that ends TLS sends to the proxy is http.
if env.get("DLSPAWNER_PUBLIC_URL", "").startswith("https://"):
    c.JupyterHub.public_url = env["DLSPAWNER_PUBLIC_URL"]
c.JupyterHub.cleanup_servers = False
c.JupyterHub.init_spawners_timeout = 1  # the pages are there at once, running jobs are looked after in the background
c.JupyterHub.cleanup_proxy = False
if "DLSPAWNER_STATE" in env:  # in a cluster the secret is in JPY_COOKIE_SECRET, and nothing is kept in files
    c.JupyterHub.cookie_secret_file = str(Path(env["DLSPAWNER_STATE"]) / "hub_cookie_secret")

# The Hub's log as JSON, one object a line, like that of the Manager and the gateway with --log-format=json.
if env.get("DLSPAWNER_LOG_FORMAT") == "json":
    c.JupyterHub.logging_config = {"formatters": {"console": {"class": "dlspawner.request_log.JsonFormatter"}}}

# Login. One password for all users is for a first look; the organisation's authenticator goes to overrides.py.
if "DLSPAWNER_PASSWORD" in env:
    c.JupyterHub.authenticator_class = "shared-password"
    c.SharedPasswordAuthenticator.user_password = env["DLSPAWNER_PASSWORD"]
    c.SharedPasswordAuthenticator.admin_password = env["DLSPAWNER_ADMIN_PASSWORD"]
    c.Authenticator.admin_users = {"admin"}
    c.Authenticator.allow_all = True

# Pages: ours extend JupyterHub's own. Login leads to /hub/home, and on to the Manager's list of jobs if it answers.
c.JupyterHub.template_paths = [str(templates / "hub")]
c.JupyterHub.logo_file = str(templates / "hub" / "logo.svg")
c.JupyterHub.redirect_to_server = False
c.JupyterHub.allow_named_servers = True

# Services and what each may do.
c.JupyterHub.custom_scopes = {
    "custom:ssh-keys:read": {"description": "Read the public SSH keys that people registered"},
    "custom:notices:read": {"description": "Read what people are told about their running jobs"},
    "custom:ssh-starts": {"description": "Start what people log in to by SSH, as far as they want that"},
    "custom:ssh-sessions:write": {"description": "Say which jobs have SSH sessions, and when they were last used"},
}
if alone:
    c.JupyterHub.services = [
        {
            "name": "jobs",
            "url": env["DLSPAWNER_MANAGER_URL"],
            "api_token": env["DLSPAWNER_MANAGER_TOKEN"],
            "oauth_no_confirm": True,
            "display": False,
        },
        {"name": "ssh-gateway", "api_token": env["DLSPAWNER_GATEWAY_TOKEN"], "display": False},
    ]
    manager = "access:services!service=jobs"
    c.JupyterHub.load_roles = [
        {
            "name": "jobs",
            "scopes": ["servers", "list:users", "read:users", "list:groups", "read:groups"],
            "services": ["jobs"],
        },
        {
            "name": "ssh-gateway",
            "scopes": [
                *("users:activity", "list:users", "read:users", "read:servers", manager),
                *("custom:ssh-keys:read", "custom:notices:read", "custom:ssh-sessions:write", "custom:ssh-starts"),
            ],
            "services": ["ssh-gateway"],
        },
        {"name": "user", "scopes": ["self", manager]},
        # A job's own token: its activity, its login proxy, and telling the Manager of SSH keys and of its kernels.
        {"name": "server", "scopes": ["users:activity!user", "access:servers!server", manager]},
    ]

if "DLSPAWNER_LAUNCHER_TOKEN" in env:  # on one machine: the launcher reads the routes when it restarts the proxy
    launcher = env["DLSPAWNER_LAUNCHER_TOKEN"]
    c.JupyterHub.services.append({"name": "launcher", "api_token": launcher, "display": False})
    c.JupyterHub.load_roles.append({"name": "launcher", "scopes": ["proxy"], "services": ["launcher"]})


def revoke_replaced_tokens(hub):
    """JupyterHub adds configured tokens to its database and removes none: a replaced secret would stay valid."""
    add = hub.init_api_tokens

    async def add_and_revoke():
        await add()
        for row in hub.db.query(orm.APIToken).filter_by(note="from config"):
            if not any(row.match(token) for token in (*hub.service_tokens, *hub.api_tokens)):
                hub.log.warning("a token of %s is not configured any more: revoked", row.owner.name)
                hub.db.delete(row)
        hub.db.commit()

    hub.init_api_tokens = add_and_revoke


if JupyterHub.initialized():  # not for `jupyterhub token` and the like
    revoke_replaced_tokens(JupyterHub.instance())

# Starting jobs. A pending start may wait for a node and must not keep other people from starting theirs.
c.JupyterHub.spawner_class = "dlspawner.spawner.DLSpawner"
c.JupyterHub.concurrent_spawn_limit = 0
c.JupyterHub.last_activity_interval = 60
c.Spawner.consecutive_failure_limit = 0  # JupyterHub 5.5 counts refusals as failures and would exit
c.Spawner.start_timeout = 600
c.Spawner.http_timeout = 60
c.Spawner.poll_interval = 10  # how soon a job that ended by itself is seen to have ended; costs no request

# What jobs are made of.
c.DLSpawner.templates_dir = str(templates)
c.DLSpawner.cluster_file = str(config_dir / "cluster.yaml")
c.DLSpawner.teams_file = str(config_dir / "teams.yaml")
c.DLSpawner.ssh_ca_public_key_file = env["DLSPAWNER_SSH_CA"]
c.DLSpawner.ssh_address = f"{env['DLSPAWNER_SSH_HOST']}:{env['DLSPAWNER_SSH_PORT']}"
c.DLSpawner.manager_url = manager_url
c.KubeSpawner.namespace = env["DLSPAWNER_NAMESPACE"]
c.DLSpawner.special_namespace = env.get("DLSPAWNER_SPECIAL_NAMESPACE", "")  # empty: no user has special permissions
c.KubeSpawner.image = env.get("DLSPAWNER_IMAGE", "dlspawner/job:latest")
c.DLSpawner.ssh_image = env.get("DLSPAWNER_SSH_IMAGE", "")
# Jobs run as the person: a uid from auth_state (DLSpawner.account_keys), else the one that the Manager keeps for them.
c.DLSpawner.manager_token = env["DLSPAWNER_MANAGER_TOKEN"]
c.KubeSpawner.events_enabled = False  # progress is read from the pod itself
# Everything in a pod listens on the pod's own address, so that pods of one machine can use the same ports; with IPv6
# notebooks listen on all addresses, because JupyterHub removes the brackets that a variable needs in a URL.
c.KubeSpawner.ip = "::" if ":" in env.get("KUBERNETES_SERVICE_HOST", "") else "$(POD_IP)"
# One home directory per person, for all of their servers.
c.KubeSpawner.storage_pvc_ensure = True
c.KubeSpawner.delete_pvc = False  # a user removed from the Hub keeps the data: claims are an administrator's to delete
c.KubeSpawner.pvc_name_template = "home-{username}"
c.KubeSpawner.storage_capacity = wanted.cluster.storage.home_size
c.KubeSpawner.storage_class = wanted.cluster.storage.storage_class
c.KubeSpawner.storage_access_modes = list(wanted.cluster.storage.access_modes)

# What this deployment alone wants.
if overrides.is_file():
    load_subconfig(str(overrides))
pod_ip = {"POD_IP": {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}}
c.DLSpawner.environment = {**pod_ip, **configuration.configured(DLSpawner, c, "environment")}
# A stop waits no longer than a start: every grace period has to fit into the time that holds in the end. And special
# permissions want a namespace. What does not fit later, when the files have changed, is not used.
good(
    (c.DLSpawner.templates_dir, c.DLSpawner.cluster_file, c.DLSpawner.teams_file),
    start_timeout=configuration.configured(DLSpawner, c, "start_timeout"),
    special_namespace=c.DLSpawner.special_namespace,
)
if c.DLSpawner.special_namespace == c.KubeSpawner.namespace:
    sys.exit("c.DLSpawner.special_namespace cannot be that of ordinary jobs, which refuses special permissions.")
hub = configuration.of_hub(DLSpawner, c)
problems = [*configuration.problems(hub), *configuration.job_problems(hub)]
if problems:
    sys.exit("No job could be started: " + "; ".join(problems) + ".")
if "authenticator_class" not in c.JupyterHub:
    sys.exit(f"No login would be possible: set c.JupyterHub.authenticator_class in {overrides}.")
