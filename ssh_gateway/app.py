"""The process: settings, start, signals, stop. `python -m ssh_gateway --help-all` explains every setting.

Also checks the settings and reads the files named in them, beside the gateway's own keys, before the port opens; each
problem is one sentence that names the setting.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NoReturn

from traitlets import Bool, Enum, Integer, List, TraitError, Unicode, validate
from traitlets.config import Application, Config

from dlspawner import tracing
from dlspawner.clients.hub import HubClient
from dlspawner.clients.kubernetes import KubernetesClient, KubernetesError
from dlspawner.known_settings import Float, unknown, unreadable
from dlspawner.looplag import watch_loop
from ssh_gateway.auth.rate_limit import PenaltyRules
from ssh_gateway.auth.revalidation import Revalidator
from ssh_gateway.auth.trust import RevocationList, TrustedCas
from ssh_gateway.backends.activity import ActivityReporter
from ssh_gateway.backends.cluster import ClusterJobDirectory
from ssh_gateway.backends.directory import HubAndManager
from ssh_gateway.core.addresses import read_networks
from ssh_gateway.core.packets import RelayPolicy
from ssh_gateway.log import say, to_stderr
from ssh_gateway.metrics import serve_health
from ssh_gateway.server import GatewayServer
from ssh_gateway.session.context import GatewayLimits
from ssh_gateway.session.terminals import NoticeFollower
from ssh_gateway.transport import keys


class Gateway(Application):
    """The SSH gateway of dlspawner: users reach the sshd of their own jobs through it, and nothing else.

    From the environment: JUPYTERHUB_API_TOKEN (its service token; scopes users:activity, read:users, list:users,
    access:services!service=jobs, custom:ssh-keys:read, custom:notices:read, custom:ssh-sessions:write,
    custom:ssh-starts), JUPYTERHUB_API_URL, and KUBECONFIG outside the cluster.
    """

    name = "ssh-gateway"
    description = __doc__

    ip = Unicode(
        "127.0.0.1",
        help="Address to listen on; :: for all addresses of this machine, of IPv4 and IPv6, 0.0.0.0 for those of IPv4.",
    ).tag(config=True)
    port = Integer(2222, min=0, max=65535, help="Port to listen on; 0 takes a free one and logs it.").tag(config=True)
    share_port = Bool(
        False,
        help="Whether several gateways on this machine listen on the same port (SO_REUSEPORT, Linux); the kernel "
        "distributes connections. They need the same account and state_dir, this setting, and a health_port each; "
        "each gateway applies limits and penalties separately. False: a second gateway on the port does not start.",
    ).tag(config=True)
    health_port = Integer(
        0,
        min=0,
        max=65535,
        help="Port for Kubernetes' probes: any HTTP request is answered 200 until the process ends, /ready 503 from "
        "the beginning of the shutdown, /metrics with Prometheus' metrics (without users and addresses; no token is "
        "needed). 0, the default: no such port.",
    ).tag(config=True)
    state_dir = Unicode(
        "gateway",
        help="Directory of the gateway's keys: host key and user CA, made at the first start, mode 0600. Several "
        "gateways behind one address need the same contents.",
    ).tag(config=True)
    user_ca_file = Unicode(
        "",
        help="File of the public keys of your organisation's SSH user CAs, one a line, as sshd's TrustedUserCAKeys. "
        "A certificate of such a CA lets in the users that its principals name, by their names in the Hub. "
        "Validity, source-address, force-command and the permit-... extensions hold; other critical options are "
        "refused. Read again when it changes. Empty: none.",
    ).tag(config=True)
    revoked_certificates_file = Unicode(
        "",
        help="Revoked certificates, in the format from which ssh-keygen -k makes a KRL: serial: 17, serial: "
        "100-199, id: KEYID, hash: SHA256:… or a public key (a user's or a CA's). Read again when it changes, for "
        "open sessions too; while it cannot be read, every certificate is refused. Empty: none is revoked.",
    ).tag(config=True)
    manager_url = Unicode(
        "http://127.0.0.1:8081/services/jobs",
        help="The Manager's address inside the cluster, with its service prefix; the gateway reads registered keys "
        "there.",
    ).tag(config=True)
    namespace = Unicode("", help="Kubernetes namespace of the jobs; empty: the one KUBECONFIG points to.").tag(
        config=True
    )
    special_namespace = Unicode(
        "",
        help="The second namespace, of jobs with special permissions, the same as DLSpawner.special_namespace; "
        "empty: there are none.",
    ).tag(config=True)
    hub_public_url = Unicode("http://127.0.0.1:8000/", help="The Hub's public address, for links in messages.").tag(
        config=True
    )
    max_attempts = Integer(
        6, min=1, max=100, help="Failed credentials after which a connection is closed; OpenSSH's default is 6 too."
    ).tag(config=True)
    login_timeout_seconds = Float(
        120.0,
        min=1.0,
        help="Time limit of a login, with the user's typing and the connection to the job; OpenSSH's default is 120 "
        "too.",
    ).tag(config=True)
    max_unauthenticated = Integer(
        200,
        min=1,
        help="Connections without a finished login at one time. Above it the gateway ends the oldest one of the "
        "address with the most, first those without an attempt: silent connections keep no other client out.",
    ).tag(config=True)
    max_unauthenticated_per_source = Integer(
        100,
        min=1,
        help="The same for one address: above it the gateway ends the oldest one of this address. Raise it behind a "
        "NAT or a balancer.",
    ).tag(config=True)
    max_connections_per_user = Integer(
        200, min=1, help="Connections of one user at one time; each stream of `ssh -J` counts."
    ).tag(config=True)
    connections_per_second_per_source = Float(
        10.0,
        min=0.0,
        help="Sustained rate of new connections of one address (of IPv6 its /64); 20 seconds' worth may come at "
        "once. More are refused with a sentence, before any key exchange. Streams of ssh -J have the same rate, for "
        "each user. 0: no limit.",
    ).tag(config=True)
    penalty_seconds = Float(
        5.0,
        min=0.0,
        help="Penalty of an address for a wrong token, in seconds, which pass by themselves. 12 penalties are free; "
        "above them the address is refused until the rest has passed, at most 120 penalties. Wrong keys, and "
        "connections without a login, cost nothing. The login's name has the same penalty for each token that is "
        "checked; above 24 of them the next token for the name waits until the rest has passed, from any address. "
        "Exempt are keys, certificates, and addresses of the user's own from which the user logged in within a "
        "week. 0: no penalties.",
    ).tag(config=True)
    shared_sources = List(
        Unicode(),
        help="Networks, as 10.0.0.0/8, with addresses that several users share, such as a balancer's or a NAT's. "
        "They are exempt from max_unauthenticated_per_source, connections_per_second_per_source and the penalties "
        "of addresses. Penalties of names apply, and a login from a shared address exempts none: while an attacker "
        "guesses tokens of a name, tokens for the name wait at these addresses, and keys do not. Empty, the "
        "default: each address belongs to one user.",
    ).tag(config=True)
    proxy_protocol_from = List(
        Unicode(),
        help="Networks, as 10.0.0.5/32, of the balancers in front of this gateway. They must send a PROXY protocol "
        "header, version 2, within 5 seconds; limits, penalties and the log use the address in it. A header from "
        "any other address ends the connection. Their health checks (LOCAL) read SSH's greeting. Empty, the "
        "default: clients connect directly.",
    ).tag(config=True)
    start_seconds = Float(
        300.0,
        min=0.0,
        help="Time that a login waits for a job that starts or waits in the queue; after it the user reads the "
        "job's position, and the job continues. Users and templates decide whether a login starts a job "
        "(start_on_connect). 0: no login starts a job or waits for one.",
    ).tag(config=True)
    drain_seconds = Float(
        5.0,
        min=0.0,
        help="Time that open sessions have to end after SIGTERM. Every terminal shows the end of this time, and new "
        "connections are refused; after it, or at a second signal, sessions end with a sentence. 0: sessions end at "
        "once, without notice.",
    ).tag(config=True)
    activity_seconds = Float(
        60.0,
        min=0.1,
        help="Seconds between two reports of a job's use: to the Hub (each report is a commit), and, with all open "
        "sessions, to the Manager.",
    ).tag(config=True)
    revalidate_seconds = Float(
        20.0,
        min=0.1,
        max=50.0,
        help="Seconds between two checks of all open sessions. Within this time (and the few seconds of a round) a "
        "session ends, with a sentence, if its user is blocked or deleted, its key or token is removed, or its job "
        "is being stopped; later only while the Manager, the Hub or the cluster does not answer.",
    ).tag(config=True)
    agent_forwarding = Bool(
        False,
        help="Whether `ssh -A` works. False, the default, because a program in the job could use the user's agent "
        "meanwhile.",
    ).tag(config=True)
    x11_forwarding = Bool(
        False,
        help="Whether `ssh -X` works. False, the default, because a program in the job could watch the user's screen.",
    ).tag(config=True)
    log_commands = Bool(
        False,
        help="Whether the log has users' whole commands, cut at 200 characters, instead of their first word. False, "
        "the default, because command lines contain passwords and tokens. Text typed into a shell is in no log.",
    ).tag(config=True)
    log_lines = Enum(
        ("text", "json"),
        default_value="text",
        help="Format of log lines: text, the default, or one JSON object with time, level, logger, message and the "
        "message's fields. Short form: --log-format=json.",
    ).tag(config=True)
    init = Bool(False, help="Make the keys in state_dir and exit.").tag(config=True)

    flags = {  # noqa: RUF012  (traitlets declares it so)
        "init": ({"Gateway": {"init": True}}, "Make the keys in Gateway.state_dir and exit."),
    }
    aliases = {"log-format": "Gateway.log_lines"}  # noqa: RUF012  (traitlets declares it so)

    @validate("shared_sources", "proxy_protocol_from")
    def _networks(self, proposal: Any) -> list[str]:
        try:
            read_networks(proposal["value"])
        except ValueError as error:
            raise TraitError(f"Gateway.{proposal['trait'].name}: {error}") from None
        return list(proposal["value"])

    def initialize(self, argv: list[str] | None = None) -> None:
        try:
            _refuse(unreadable(sys.argv[1:] if argv is None else argv, self))
            super().initialize(argv)
            _refuse(unknown(Config(), type(self), self.extra_args))
        except GatewayMisconfigured as problem:
            _give_up(problem)
        logging.basicConfig(level=logging.WARNING, handlers=[to_stderr(self.log_lines == "json")])
        logging.getLogger("ssh_gateway").setLevel(logging.INFO)
        # asyncssh logs user names unescaped; the gateway's own lines have the events, and errors in `event=failed`.
        logging.getLogger("asyncssh").setLevel(logging.CRITICAL)
        # asyncssh wants a name for its own user, and in a container the uid may have none. The name is never sent.
        os.environ.setdefault("LOGNAME", self.name)

    def update_config(self, config: Config) -> None:
        """Applies settings; raises GatewayMisconfigured for a setting that does not exist."""
        _refuse(unknown(config, type(self)))
        super().update_config(config)

    def start(self) -> None:
        """Runs until SIGTERM or SIGINT; SystemExit(1) with a sentence if the gateway cannot start."""
        try:
            found = keys.load_or_make(Path(self.state_dir))
            authorities = TrustedCas(_path(self.user_ca_file))
            revocations = RevocationList(_path(self.revoked_certificates_file))
            authorities.load()
            revocations.load()
            if not self.init:
                asyncio.run(self._serve(found, authorities, revocations))
        except (GatewayMisconfigured, keys.KeysUnusable) as problem:
            _give_up(problem)

    async def _serve(self, found: keys.GatewayKeys, authorities: TrustedCas, revocations: RevocationList) -> None:
        tracing.start("ssh-gateway")
        token, hub_url = required("JUPYTERHUB_API_TOKEN"), required("JUPYTERHUB_API_URL")
        async with contextlib.AsyncExitStack() as stack:
            hub = await stack.enter_async_context(HubClient(hub_url, token))
            auth_backend = HubAndManager(hub, self.manager_url, token)
            try:
                cluster = await stack.enter_async_context(await KubernetesClient.connect())
            except KubernetesError as error:
                raise GatewayMisconfigured(f"{error} (environment variable KUBECONFIG)") from error
            activity = ActivityReporter(auth_backend, self.activity_seconds)
            notices = NoticeFollower(auth_backend)
            job_directory = ClusterJobDirectory(cluster, self.namespace or cluster.namespace, self.special_namespace)
            revalidator = Revalidator(auth_backend, job_directory, self.revalidate_seconds, revocations=revocations)
            server = GatewayServer(
                keys=found,
                auth_backend=auth_backend,
                job_directory=job_directory,
                activity=activity,
                hub_public_url=self.hub_public_url,
                limits=self._limits(),
                policy=RelayPolicy(self.agent_forwarding, self.x11_forwarding),
                notices=notices,
                revalidator=revalidator,
                authorities=authorities,
                log_commands=self.log_commands,
            )
            doing: set[asyncio.Task[Any]] = {
                asyncio.create_task(activity.run(), name="report activity"),
                asyncio.create_task(notices.run(), name="follow notices"),
                asyncio.create_task(revalidator.run(), name="revalidation"),
                asyncio.create_task(watch_loop(server.counters.loop_lag.observe), name="measure the loop"),
            }
            async with _ending(doing):
                await self._run(server, doing)
            say("stopped")

    async def _run(self, server: GatewayServer, doing: set[asyncio.Task[Any]]) -> None:
        begin, force = asyncio.Event(), asyncio.Event()

        def stop() -> None:
            """Begins the stop; the second call cuts the wait for sessions short."""
            (force if begin.is_set() else begin).set()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop)
        with taking(self.ip, self.port, "Gateway.port"):
            host, port = await server.start(self.ip, self.port, shared=self.share_port)
        health = None
        if self.health_port:
            with taking(self.ip, self.health_port, "Gateway.health_port"):
                health = serve_health(self.ip, self.health_port, lambda: not server.stopping, server.counters.text)
        say("ready", address=f"{host}:{port}", host_key=server.keys.host.get_fingerprint(), gateway=server.name)
        doing.add(asyncio.create_task(begin.wait(), name="stop signal"))
        ended, _ = await asyncio.wait(doing, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            await task  # raises the error that ended it
        say("stopping", sessions=len(server.connections))
        await server.stop(force=force)
        if health is not None:
            health.stop()

    def _limits(self) -> GatewayLimits:
        return GatewayLimits(
            attempts=self.max_attempts,
            login_seconds=self.login_timeout_seconds,
            waiting=self.max_unauthenticated,
            waiting_per_source=self.max_unauthenticated_per_source,
            connections_per_user=self.max_connections_per_user,
            drain_seconds=self.drain_seconds,
            start_seconds=self.start_seconds,
            rules=PenaltyRules(
                penalty_seconds=self.penalty_seconds,
                connections_per_second=self.connections_per_second_per_source,
                shared=read_networks(self.shared_sources),
            ),
            balancers=read_networks(self.proxy_protocol_from),
        )


@contextlib.asynccontextmanager
async def _ending(doing: set[asyncio.Task[Any]]) -> AsyncIterator[None]:
    """Cancels the tasks at the end of the block, also after an error.

    The tasks must end before the resources that they use are closed: they would open those again.
    """
    try:
        yield
    finally:
        for task in doing:
            task.cancel()
        await asyncio.gather(*doing, return_exceptions=True)


def _give_up(problem: Exception) -> NoReturn:
    print(f"ssh-gateway: {problem}", file=sys.stderr)
    raise SystemExit(1) from None


def main() -> None:
    Gateway.launch_instance()


def _path(written: str) -> Path | None:
    return Path(written) if written else None


class GatewayMisconfigured(Exception):
    """A setting or its surroundings are wrong; the message names the setting."""


def _refuse(problem: str | None) -> None:
    """Raises GatewayMisconfigured if there is a problem with the settings."""
    if problem is not None:
        raise GatewayMisconfigured(problem)


def required(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise GatewayMisconfigured(f"environment variable {name} is not set")
    return value


@contextlib.contextmanager
def taking(ip: str, port: int, setting: str) -> Iterator[None]:
    """Names the setting in the error when a port cannot be opened."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise GatewayMisconfigured(
            f"port {port} on {ip} cannot be used: {why} (settings {setting} and Gateway.ip)"
        ) from error
