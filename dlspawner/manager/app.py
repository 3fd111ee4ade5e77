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
        help="""Where the Manager keeps its data, as an SQLAlchemy URL: sqlite:////path/manager.sqlite for one Manager,
        postgresql+psycopg://user@host/name for production. A password belongs into the environment variable
        DLSPAWNER_MANAGER_DB_URL, which is the default of this setting, not onto the command line. Without either it is
        the file manager.sqlite in the working directory.""",
    ).tag(config=True)
    ip = Unicode(
        help="""Address to listen on. Empty (the default): the host in JUPYTERHUB_SERVICE_URL, which is what the proxy
        connects to; in a container, where that is the name of a Kubernetes Service, say ::, which is all
        addresses of IPv4 and IPv6. The port is always that of JUPYTERHUB_SERVICE_URL.""",
    ).tag(config=True)
    template_paths = List(
        Unicode(),
        help="""Directories with page templates, searched before JupyterHub's own, as JupyterHub.template_paths is.
        Default: templates/hub beside the dlspawner package, where a source checkout has it.""",
    ).tag(config=True)

    cluster_file = Unicode(
        help="""The file cluster.yaml, the same as DLSpawner.cluster_file. With teams_file and templates_dir it lets the
        Manager decide which jobs may hold GPUs; a change of any of them takes effect within seconds, one with mistakes
        in it none: the last good version of them, which is kept in the database, stays in use, also of a Manager
        or Hub that starts meanwhile. Empty (the default): nothing is decided here, and a Hub that asks is answered
        501.""",
    ).tag(config=True)
    teams_file = Unicode(
        help="""The file teams.yaml with the teams' quotas, the same as DLSpawner.teams_file. Empty (the default): see
        cluster_file.""",
    ).tag(config=True)
    templates_dir = Unicode(
        help="""The directory with jobs/*.yaml, the same as DLSpawner.templates_dir: what cluster.yaml and teams.yaml
        say is checked against it. Empty (the default): see cluster_file.""",
    ).tag(config=True)
    namespace = Unicode(
        help="""The namespace of the jobs' pods, the same as KubeSpawner.namespace. Empty (the default): the one that
        the kubeconfig, or the pod's service account, points at. Where there are limits, a job that would be in another
        namespace is refused, because nobody would count it: they do not go with enable_user_namespaces.""",
    ).tag(config=True)
    ssh_address = Unicode(
        help="""host:port of the SSH gateway as people type it, the same as DLSpawner.ssh_address, for the commands on
        the Manager's pages. The port may be left out when it is 22. Default: DLSPAWNER_SSH_HOST and DLSPAWNER_SSH_PORT
        of the environment; empty, without these: the pages show no SSH commands.""",
    ).tag(config=True)
    ssh_host_key_file = Unicode(
        help="""The gateway's public host keys, one a line: ssh_host_ed25519_key.pub in Gateway.state_dir, or in the
        Secret gateway-keys. People who use `dlspawner ssh-config`, or the files of the page SSH keys, have them pinned
        then; it is read anew each time. Empty, the default: OpenSSH asks them whether they know the
        gateway's key.""",
    ).tag(config=True)
    min_rsa_bits = Integer(
        MIN_RSA_BITS,
        min=1024,
        max=MAX_RSA_BITS,
        help="""Bits that an RSA key needs to be registered for SSH. Default: 2048, which PuTTYgen makes. Keys that are
        registered already stay. Of the certificates of a CA (Gateway.user_ca_file), RSA keys need 2048 bits.""",
    ).tag(config=True)
    special_namespace = Unicode(
        help="The second namespace, of jobs with special permissions, the same as DLSpawner.special_namespace; it is "
        "counted like the first one. Empty (the default): there are no such jobs, and a cluster.yaml that switches "
        "special permissions on is not used."
    ).tag(config=True)
    start_timeout = Integer(
        600,
        min=1,
        help="""The Hub's start_timeout, into which every template's grace period has to fit: a file that the Hub would
        refuse is not used here either. Default: 600, as hub_config/jupyterhub_config.py sets it.""",
    ).tag(config=True)
    lease_seconds = Float(
        8.0,
        min=1.0,
        max=60.0,
        help="""How long the right to decide lasts when the Manager that holds it dies; another Manager on the same
        database takes over a second later at the latest. It is renewed three times in this time: 8 seconds, the
        default, survive a database that is slow for five.""",
    ).tag(config=True)
    reservation_seconds = Float(
        60.0,
        min=5.0,
        max=3600.0,
        help="""How long the Hub may take between being told that a job may start and asking Kubernetes for its pod;
        something is held for so long when the Hub dies in between. 60 seconds, the default, are enough for every try of
        a request.""",
    ).tag(config=True)
    max_concurrent_starts = Integer(
        20,
        min=1,
        max=1000,
        help="""How many jobs whose turn has come the Hub starts at one time, until their pods are there; the others'
        turns come as these get going. Default: 20. It is no use to make it larger than
        JupyterHub.concurrent_spawn_limit, unless that is 0.""",
    ).tag(config=True)
    watch_all_namespaces = Bool(
        True,
        help="""Whether pods of other namespaces, such as those of DaemonSets, are looked at: what they hold of a node
        is not free for jobs. It needs a ClusterRole that may list and watch pods, and so read the manifests of all pods
        of the cluster, environments included. False: what they hold is not known; where a node has less CPU and memory
        left than its GPUs' shares, a job may be admitted and its pod wait, holding its GPUs. Default: True.""",
    ).tag(config=True)
    forbidden_address = Unicode(
        help="""host:port that the NetworkPolicies keep the Manager from, proxy-api:8001 in the manifests. If it
        answers, no network plug-in enforces them, and the Manager that acts says so in its log and as an event of its
        pod. It tries when it begins to act, and once a minute until there is an answer. Empty (the default): nothing is
        tried.""",
    ).tag(config=True)
    authenticate_prometheus = Bool(
        True,
        help="""Whether reading the Manager's metrics (/services/jobs/api/metrics) needs a token with the Hub's scope
        read:metrics, or an administrator's browser, as JupyterHub.authenticate_prometheus is for the Hub's own. False:
        everybody who reaches the Manager reads how many GPUs each team holds and waits for. Default: True.""",
    ).tag(config=True)
    cull_every = Float(
        30.0,
        min=1.0,
        max=600.0,
        help="""How often the Manager looks which jobs are not used: one list of the Hub's, two questions to Prometheus
        (GpuMetrics.prometheus_url). Default: 30 seconds.""",
    ).tag(config=True)

    history_days = Integer(
        0,
        min=0,
        help="""For how many days jobs that have ended are kept, with their events and what else is kept of each: 0, the
        default, is for ever. Their GPU-hours stay (gpu_hours_days).""",
    ).tag(config=True)
    gpu_hours_days = Integer(
        1100,
        min=0,
        help="""For how many days GPU-hours by day, team, person and GPU type are kept, and how many GPUs were free.
        1100, the default, are three years; 0 is for ever.""",
    ).tag(config=True)

    aliases = {  # noqa: RUF012 — traitlets reads it from the class
        "log-level": "Application.log_level",
        "db-url": "Manager.db_url",
        "log-format": "Manager.log_lines",
    }

    log_lines = Enum(
        ("text", "json"),
        default_value="text",
        help="""What a log line is: text, the default, or one JSON object with time, level, logger, message, request id
        and the message's fields. --log-format=json is short for it; the variable DLSPAWNER_LOG_FORMAT says the same to
        hub_config/jupyterhub_config.py.""",
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
