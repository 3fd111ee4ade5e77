"""What the Manager reads from JupyterHub's environment for services, and what it hands to JupyterHub's templates."""

from __future__ import annotations

import json
import re
import socket

import pytest

from dlspawner.clients.hub import HubIdentity, IdentityKind
from dlspawner.manager.http.auth import ServiceEnvironmentMissing, read_service, recipient_of
from dlspawner.manager.http.handlers import PageUser, page_namespace
from dlspawner.manager.server import bind
from tests.harness.ports import free_port

MINIMAL = {
    "JUPYTERHUB_SERVICE_URL": "http://127.0.0.1:8082",
    "JUPYTERHUB_API_URL": "http://127.0.0.1:8081/hub/api",
    "JUPYTERHUB_API_TOKEN": "secret",
}


@pytest.mark.parametrize(
    ("given", "prefix", "base_url", "client_id"),
    [
        ({}, "/services/jobs/", "/", "service-jobs"),
        ({"JUPYTERHUB_SERVICE_NAME": "gpu"}, "/services/gpu/", "/", "service-gpu"),
        ({"JUPYTERHUB_BASE_URL": "/lab/"}, "/lab/services/jobs/", "/lab/", "service-jobs"),
        ({"JUPYTERHUB_SERVICE_PREFIX": "lab/services/jobs"}, "/lab/services/jobs/", "/", "service-jobs"),
        ({"JUPYTERHUB_CLIENT_ID": "own"}, "/services/jobs/", "/", "own"),
    ],
    ids=["nothing but what must be", "another name", "a Hub below a path", "a prefix without slashes", "a client id"],
)
def test_the_environment_of_a_service(given: dict[str, str], prefix: str, base_url: str, client_id: str) -> None:
    service = read_service({**MINIMAL, **given})
    assert (service.prefix, service.base_url, service.client_id) == (prefix, base_url, client_id)
    assert (service.host, service.port) == ("127.0.0.1", 8082)


def test_all_that_is_missing_is_named() -> None:
    with pytest.raises(ServiceEnvironmentMissing, match="SERVICE_URL, JUPYTERHUB_API_URL, JUPYTERHUB_API_TOKEN"):
        read_service({})


def test_cookies_outlive_a_restart_but_not_a_new_token() -> None:
    secrets = {read_service({**MINIMAL, "JUPYTERHUB_API_TOKEN": token}).cookie_secret() for token in ("a", "a", "b")}
    assert len(secrets) == 2


def test_the_service_does_not_show_its_token() -> None:
    assert "secret" not in repr(read_service(MINIMAL))


def test_pages_of_a_hub_below_a_path_take_from_it_what_the_manager_does_not_serve() -> None:
    service = read_service({**MINIMAL, "JUPYTERHUB_BASE_URL": "/lab/"})
    namespace = page_namespace(service, HubIdentity("alice", IdentityKind.USER, frozenset()))
    static_url = namespace["static_url"]
    assert callable(static_url)
    assert static_url("js/home.js") == "/lab/hub/static/js/home.js"
    assert static_url("js", include_version=False) == "/lab/hub/static/js"
    assert re.fullmatch(
        r"/lab/services/jobs/static/css/style\.min\.css\?v=[0-9a-f]{16}", static_url("css/style.min.css")
    )
    assert namespace["logout_url"] == "/lab/hub/logout"


@pytest.mark.parametrize("name", ["alice", '"+alert(1)+"', "</script><script>", "\\", "ü\u2028"])
def test_a_name_stays_text_inside_the_pages_script(name: str) -> None:
    escaped = PageUser(name).json_escaped_name
    assert "<" not in escaped
    assert json.loads(f'"{escaped}"') == name


@pytest.mark.parametrize(
    ("scopes", "by_token", "told"),
    [
        pytest.param(frozenset(), False, True, id="in a browser"),
        pytest.param(frozenset({"read:servers"}), True, True, id="a token that sees everybody's jobs"),
        pytest.param(frozenset({"access:services!service=jobs"}), True, False, id="a token for this service alone"),
        pytest.param(frozenset({"read:servers!user=ada"}), True, False, id="a token that sees their own jobs"),
    ],
)
def test_administrators_are_told_with_a_token_that_allows_it(
    scopes: frozenset[str], by_token: bool, told: bool
) -> None:
    admin = HubIdentity("ada", IdentityKind.USER, scopes, admin=True)
    assert recipient_of(admin, by_token=by_token).admin is told


@pytest.mark.parametrize(("address", "reached"), [("::", ["127.0.0.1", "::1"]), ("::1", ["::1"])])
def test_it_listens_on_ipv6_and_with_two_colons_on_ipv4_as_well(address: str, reached: list[str]) -> None:
    url = f"http://[{address}]:{free_port()}"
    service = read_service({**MINIMAL, "JUPYTERHUB_SERVICE_URL": url})
    for one in (sockets := bind(service.host, service.port)):
        one.listen()
    for host in reached:
        socket.create_connection((host, service.port), 10).close()
    for one in sockets:
        one.close()
