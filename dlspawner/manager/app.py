"""The Manager's process: its settings, its HTTP server, its start and its stop.

It starts before the Hub, which waits for it, and needs none to answer `health`. Order: take the port, migrate the
database, listen, say so in one line. Stop: accept no more, let running requests end, close the database.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from jinja2 import TemplateError
from sqlalchemy import make_url
from tornado.httpserver import HTTPServer
from traitlets import Bool, Enum, Integer, List, Unicode, default
from traitlets.config import Application, Config, catch_config_error

import dlspawner
from dlspawner import request_log, tracing
from dlspawner.clients.hub import HubClient
from dlspawner.core.endpoints import read_target
from dlspawner.errors import InvalidConfiguration
from dlspawner.known_settings import Float, unknown, unreadable
from dlspawner.looplag import watch_loop
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.culling.config import GpuMetrics
from dlspawner.manager.db.engine import DatabaseUnusable
from dlspawner.manager.db.repository import JobRepository
from dlspawner.manager.db.store import Database
from dlspawner.manager.history.gpu_hours import HistoryRetention
from dlspawner.manager.http import handlers
from dlspawner.manager.http.auth import HubServiceInfo, ServiceAuth, ServiceEnvironmentMissing, make_auth, read_service
from dlspawner.manager.http.templates import make_environment
from dlspawner.manager.logs.collector import JobLogs
from dlspawner.manager.model.ssh_keys import MAX_RSA_BITS, MIN_RSA_BITS
from dlspawner.manager.server import TEMPLATES, ServerCannotStart, bind, close_hub_client, drain, make_web
from dlspawner.manager.state.config_reload import ConfigReloader, initial
from dlspawner.manager.state.metrics import ManagerMetrics
from dlspawner.settings import Settings


class Manager(Application):
    """Serves /services/jobs/ beside the Hub: admission, queue, culling and history of jobs, portal and SSH keys."""

    name = "dlspawner-manager"
    description = __doc__ or ""
    version = getattr(dlspawner, "__version__", "")
    classes = [ServiceAuth, GpuMetrics, JobLogs]  # noqa: RUF012 — traitlets' way to say what else can be configured

    db_url = Unicode(
        help="""The Manager's database, as an SQLAlchemy URL: sqlite:////path/manager.sqlite for one Manager,
        postgresql+psycopg://user@host/name for production. Put a password into the environment variable
        DLSPAWNER_MANAGER_DB_URL, which is the default of this setting, not on the command line. Without either: the
        file manager.sqlite in the working directory.""",
    ).tag(config=True)
    ip = Unicode(
        help="""Address to listen on. Empty, the default: the host in JUPYTERHUB_SERVICE_URL, to which the proxy
        connects. In a container, where that host is the name of a Kubernetes Service, set ::, which is all addresses of
        IPv4 and IPv6. The port is always that of JUPYTERHUB_SERVICE_URL.""",
    ).tag(config=True)
    template_paths = List(
        Unicode(),
        help="""Directories with page templates, searched before JupyterHub's own, like JupyterHub.template_paths.
        Default: templates/hub beside the dlspawner package, its place in a source checkout.""",
    ).tag(config=True)

    cluster_file = Unicode(
        help="""The file cluster.yaml, the same as DLSpawner.cluster_file. With teams_file and templates_dir the Manager
        decides which jobs may hold GPUs. A change of any of the files takes effect within seconds. With mistakes in a
        file the last good version stays in use; it is kept in the database, also for a Manager or Hub that starts
        meanwhile. Empty, the default: the Manager decides nothing, and answers the Hub 501.""",
    ).tag(config=True)
    teams_file = Unicode(
        help="""The file teams.yaml with the teams' quotas, the same as DLSpawner.teams_file. Empty, the default: see
        cluster_file.""",
    ).tag(config=True)
    templates_dir = Unicode(
        help="""The directory with jobs/*.yaml, the same as DLSpawner.templates_dir. The Manager checks cluster.yaml and
        teams.yaml against it. Empty, the default: see cluster_file.""",
    ).tag(config=True)
    namespace = Unicode(
        help="""The namespace of the jobs' pods, the same as KubeSpawner.namespace. Empty, the default: the namespace of
        the kubeconfig, or of the pod's service account. With limits, a job in another namespace is refused, because the
        Manager does not count it: limits exclude enable_user_namespaces.""",
    ).tag(config=True)
    ssh_address = Unicode(
        help="""host:port of the SSH gateway for the commands on the Manager's pages, the same as DLSpawner.ssh_address.
        The port may be left out if it is 22. Default: DLSPAWNER_SSH_HOST and DLSPAWNER_SSH_PORT of the environment.
        Empty: the pages show no SSH commands.""",
    ).tag(config=True)
    ssh_host_key_file = Unicode(
        help="""The gateway's public host keys, one a line: ssh_host_ed25519_key.pub in Gateway.state_dir, or in the
        Secret gateway-keys. `dlspawner ssh-config` and the files of the page SSH keys then pin them. The Manager reads
        the file for each request. Empty, the default: OpenSSH asks users to confirm the gateway's key.""",
    ).tag(config=True)
    min_rsa_bits = Integer(
        MIN_RSA_BITS,
        min=1024,
        max=MAX_RSA_BITS,
        help="""Bits that an RSA key needs to be registered for SSH. Default: 2048, which PuTTYgen makes. Registered
        keys stay valid. RSA keys in certificates of a CA (Gateway.user_ca_file) need 2048 bits.""",
    ).tag(config=True)
    special_namespace = Unicode(
        help="""The second namespace, of jobs with special permissions, the same as DLSpawner.special_namespace; its
        jobs are counted, too. Empty, the default: there are no such jobs, and a cluster.yaml that permits special
        permissions is not used."""
    ).tag(config=True)
    start_timeout = Integer(
        600,
        min=1,
        help="""The Hub's start_timeout, into which every template's grace period must fit: the Manager refuses the
        files that the Hub refuses. Default: 600, as in hub_config/jupyterhub_config.py.""",
    ).tag(config=True)
    lease_seconds = Float(
        8.0,
        min=1.0,
        max=60.0,
        help="""Duration of the leader's lease. If the leader dies, another Manager on the same database takes over at
        most one second after its end. The leader renews it three times in this time. Default: 8, with which the leader
        keeps the lease if the database is slow for 5 seconds.""",
    ).tag(config=True)
    reservation_seconds = Float(
        60.0,
        min=5.0,
        max=3600.0,
        help="""Time that the Hub has from the admission of a job until its request for the pod. If the Hub dies
        meanwhile, the reservation holds the GPUs for this time. Default: 60, enough for every attempt of a
        request.""",
    ).tag(config=True)
    max_concurrent_starts = Integer(
        20,
        min=1,
        max=1000,
        help="""Number of scheduled jobs that the Hub starts at one time, each until its pods exist. Default: 20. A
        value above JupyterHub.concurrent_spawn_limit has no effect, unless that is 0.""",
    ).tag(config=True)
    watch_all_namespaces = Bool(
        True,
        help="""Whether the Manager watches pods of other namespaces, such as those of DaemonSets: the resources that
        they hold on a node are not free for jobs. It needs a ClusterRole that may list and watch pods, and so read the
        manifests of all pods of the cluster, environments included. False: these resources are not known; if a node has
        less CPU and memory left than its GPUs' shares, a job may be admitted while its pod waits and holds its GPUs.
        Default: True.""",
    ).tag(config=True)
    forbidden_address = Unicode(
        help="""host:port that the NetworkPolicies keep the Manager from, proxy-api:8001 in the manifests. If it
        answers, no network plug-in enforces them, and the leader warns in its log and by an event of its pod. The
        leader tries when it begins to lead, and once a minute until there is an answer. Empty, the default: no
        attempts.""",
    ).tag(config=True)
    authenticate_prometheus = Bool(
        True,
        help="""Whether the Manager's metrics (/services/jobs/api/metrics) need a token with the Hub's scope
        read:metrics, or an administrator's login, like JupyterHub.authenticate_prometheus for the Hub's own. False:
        every client that reaches the Manager can read the numbers of GPUs that each team holds and waits for. Default:
        True.""",
    ).tag(config=True)
    cull_every = Float(
        30.0,
        min=1.0,
        max=600.0,
        help="""Seconds between two rounds of the idle culler: one list of the Hub's users and two queries to Prometheus
        (GpuMetrics.prometheus_url) each. Default: 30.""",
    ).tag(config=True)

    history_days = Integer(
        0,
        min=0,
        help="""Days for which ended jobs are kept, with their events and other data. 0, the default: for ever. Their
        GPU-hours stay (gpu_hours_days).""",
    ).tag(config=True)
    gpu_hours_days = Integer(
        1100,
        min=0,
        help="""Days for which GPU-hours by day, team, user and GPU type are kept, and the numbers of free GPUs.
        Default: 1100, three years. 0: for ever.""",
    ).tag(config=True)

    aliases = {  # noqa: RUF012 — traitlets reads it from the class
        "log-level": "Application.log_level",
        "db-url": "Manager.db_url",
        "log-format": "Manager.log_lines",
    }

    log_lines = Enum(
        ("text", "json"),
        default_value="text",
        help="""Format of log lines: text, the default, or one JSON object with time, level, logger, message, request id
        and the message's fields. Short form: --log-format=json. The variable DLSPAWNER_LOG_FORMAT has the same effect
        in hub_config/jupyterhub_config.py.""",
    ).tag(config=True)

    @default("db_url")
    def _default_db_url(self) -> str:
        return os.environ.get("DLSPAWNER_MANAGER_DB_URL") or "sqlite:///manager.sqlite"

    @default("ssh_address")
    def _default_ssh_address(self) -> str:
        host, port = os.environ.get("DLSPAWNER_SSH_HOST", ""), os.environ.get("DLSPAWNER_SSH_PORT", "22")
        return f"{host}:{port}" if host else ""

    @default("template_paths")
    def _default_template_paths(self) -> list[str]:
        return [str(dlspawner.ROOT / "templates" / "hub")]

    @default("log_level")
    def _default_log_level(self) -> int:
        return logging.INFO

    @default("log_format")
    def _default_log_format(self) -> str:
        return "[%(levelname)1.1s %(asctime)s %(name)s] %(message)s"

    @catch_config_error
    def initialize(self, argv: list[str] | None = None) -> None:
        self._refuse(unreadable(sys.argv[1:] if argv is None else argv, self))
        super().initialize(argv)
        self._refuse(unknown(Config(), type(self), self.extra_args))
        if self.log_lines == "json":
            for handler in self.log.handlers:
                handler.setFormatter(request_log.JsonFormatter())
        # HubAuth tells tornado's loggers, at level info, every cookie it sets.
        for name, level in (("dlspawner", self.log.level), ("tornado", max(self.log.level, logging.WARNING))):
            logger = logging.getLogger(name)
            logger.handlers, logger.propagate = list(self.log.handlers), False
            logger.setLevel(level)

    def update_config(self, config: Config) -> None:
        """Takes the settings; the process ends with a sentence about an unknown one."""
        self._refuse(unknown(config, type(self)))
        super().update_config(config)

    def _refuse(self, problem: str | None) -> None:
        if problem is not None:
            self.log.critical("%s", problem)
            self.exit(1)

    def start(self) -> None:
        super().start()
        try:
            asyncio.run(self._serve())
        except (ServerCannotStart, ServiceEnvironmentMissing, DatabaseUnusable, InvalidConfiguration) as problem:
            self.log.critical("%s", problem)
            self.exit(1)

    async def _serve(self) -> None:
        tracing.start("dlspawner-manager")
        service = read_service(os.environ)
        sockets = bind(self.ip or service.host, service.port)
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        files = self._config_files()
        database = Database.open(self.db_url)
        hub = HubClient(service.api_url, service.api_token)
        leader, tasks = None, list[asyncio.Task[None]]()
        try:
            if files:
                leader = self._leader_elector(database, hub, files, await initial(files, JobRepository(database)))
                tasks.append(asyncio.create_task(leader.run(), name="decide"))
            metrics = leader.metrics if leader else ManagerMetrics()
            tasks.append(asyncio.create_task(watch_loop(metrics.loop_lag.observe), name="measure the loop's lag"))
            manager = self._assemble(service, database, leader, metrics)
            server = HTTPServer(make_web(manager), xheaders=True, idle_connection_timeout=300)
            server.add_sockets(sockets)
            shown = make_url(self.db_url).render_as_string(hide_password=True)
            self.log.info("Manager ready at %s%s, database %s", service.url.rstrip("/"), service.prefix, shown)
            await stop.wait()
            self.log.info("Manager stopping")
            await drain(server, manager.running)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if leader and leader.prometheus:
                await leader.prometheus.close()
            await hub.close()
            await database.close()
            await close_hub_client()

    def _config_files(self) -> ConfigReloader | None:
        given = (self.cluster_file, self.teams_file, self.templates_dir)
        if any(given) and not all(given):
            raise ServerCannotStart(
                "Manager.cluster_file, teams_file and templates_dir belong together; one is missing."
            )
        if not all(given):
            return None
        demands = {"start_timeout": self.start_timeout, "special_namespace": self.special_namespace}
        return ConfigReloader(Path(given[2]) / "jobs", Path(given[0]), Path(given[1]), demands)

    def _leader_elector(
        self, database: Database, hub: HubClient, files: ConfigReloader, wanted: Settings
    ) -> LeaderElector:
        return LeaderElector(
            repository=JobRepository(database),
            files=files,
            settings=wanted,
            hub=hub,
            namespace=self.namespace,
            special_namespace=self.special_namespace,
            lease_seconds=self.lease_seconds,
            reservation_seconds=self.reservation_seconds,
            log_retention=JobLogs(parent=self).keeping(),
            watch_all_namespaces=self.watch_all_namespaces,
            now=_now,
            max_concurrent_starts=self.max_concurrent_starts,
            prometheus=GpuMetrics(parent=self).client(),
            cull_every=self.cull_every,
            retention=HistoryRetention(self.history_days, self.gpu_hours_days),
            forbidden_address=self.forbidden_address,
            mail_password=os.environ.get("DLSPAWNER_SMTP_PASSWORD", ""),
            public_url=os.environ.get("JUPYTERHUB_PUBLIC_URL", ""),
        )

    def _assemble(
        self, service: HubServiceInfo, database: Database, leader: LeaderElector | None, metrics: ManagerMetrics
    ) -> handlers.ManagerContext:
        templates = make_environment(self.template_paths)
        try:
            for name in TEMPLATES:
                templates.get_template(name)
        except TemplateError as error:
            searched = ", ".join(self.template_paths)
            raise ServerCannotStart(f"The template {error} is not in {searched} (Manager.template_paths).") from error
        return handlers.ManagerContext(
            service=service,
            auth=make_auth(service, self),
            database=database,
            pages=templates,
            now=_now,
            leader=leader,
            metrics=metrics,
            authenticate_prometheus=self.authenticate_prometheus,
            ssh_target=read_target(self.ssh_address),
            min_rsa_bits=self.min_rsa_bits,
            ssh_host_key_file=Path(self.ssh_host_key_file) if self.ssh_host_key_file else None,
        )


def _now() -> datetime:
    return datetime.now(UTC)


def main(arguments: Sequence[str] | None = None) -> None:
    Manager.launch_instance(None if arguments is None else list(arguments))
