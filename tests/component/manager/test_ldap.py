"""Login at a real slapd by ldapauthenticator, with the lines of hub_config/CONFIGURATIONS.md: numbers and teams."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from traitlets.config import Config

from tests.component.gateway.clients.ways import DEBIAN, LIBRARIES
from tests.component.manager.quota import QuotaHub, running
from tests.component.manager.test_oauth import TEAMS
from tests.e2e.people import wait_for
from tests.harness.ports import free_port
from tests.harness.spawner_hub import ROOT, Person
from tests.kubernetes.certificates import Authority

(LINES,) = re.findall(r"```python\n(# LDAP.*?)```", (ROOT / "hub_config" / "CONFIGURATIONS.md").read_text(), re.DOTALL)
SLAPD = """
include {schema}/core.schema
include {schema}/cosine.schema
include {schema}/nis.schema
include {schema}/inetorgperson.schema
modulepath {modules}
moduleload back_mdb.so
moduleload memberof.so
TLSCertificateFile {state}/ldap.crt
TLSCertificateKeyFile {state}/ldap.key
security simple_bind=128
database mdb
directory {state}/ldap
suffix "dc=example,dc=org"
overlay memberof
"""


PERSON = """
dn: uid={name},ou=people,dc=example,dc=org
objectClass: inetOrgPerson
objectClass: posixAccount
cn: {name}
sn: {name}
userPassword: {name}'s
uidNumber: {number}
gidNumber: {number}
homeDirectory: /home/{name}
{more}
"""
TREE = """
dn: dc=example,dc=org
objectClass: dcObject
objectClass: organization
o: Example

dn: ou=people,dc=example,dc=org
objectClass: organizationalUnit

dn: ou=groups,dc=example,dc=org
objectClass: organizationalUnit

dn: cn=vision,ou=groups,dc=example,dc=org
objectClass: groupOfNames
member: uid=alice,ou=people,dc=example,dc=org
"""
IN_VISION = "memberOf: cn=vision,ou=groups,dc=example,dc=org"  # what the overlay writes


@dataclass
class LdapHub(QuotaHub):
    ldap_port: int = field(default_factory=free_port)

    def env(self) -> dict[str, str]:
        return {**super().env(), "JUPYTERHUB_CRYPT_KEY": "5" * 64}

    def start_hub(self) -> None:
        self.start_directory()
        there = LINES.replace("ldap.example.org", "127.0.0.1")
        self.extra = f"{there}c.LDAPAuthenticator.server_port = {self.ldap_port}\n"
        super().start_hub()

    def start_directory(self) -> None:
        found = shutil.which("slapd", path=f"{os.environ['PATH']}:{DEBIAN}/usr/sbin")
        if found is None:
            pytest.skip("no slapd: `make test` unpacks it")
        (self.state / "ldap").mkdir()
        certificate, key = Authority.create("tests").issue("ldap", served=("127.0.0.1",))
        (self.state / "ldap.crt").write_bytes(certificate)
        (self.state / "ldap.key").write_bytes(key)
        schema, modules = DEBIAN / "etc/ldap/schema", DEBIAN / "usr/lib/ldap"
        (self.state / "slapd.conf").write_text(SLAPD.format(schema=schema, modules=modules, state=self.state))
        config, entries = self.state / "slapd.conf", self.state / "entries.ldif"
        people = (
            PERSON.format(name="alice", number=5012, more=IN_VISION),
            PERSON.format(name="bob", number=5013, more=""),
        )
        entries.write_text("".join((TREE, *people)))
        there = {**os.environ, "LD_LIBRARY_PATH": LIBRARIES}
        subprocess.run([found, "-Tadd", "-f", config, "-l", entries], env=there, check=True)
        at = f"ldap://127.0.0.1:{self.ldap_port}"
        self.run_with("slapd", [found, "-d", "0", "-h", at, "-f", str(config)], {"LD_LIBRARY_PATH": LIBRARIES})

        def listens() -> bool:
            assert self.running["slapd"].poll() is None, (self.state / "slapd.log").read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.ldap_port), 5):
                return True
            return False

        wait_for(listens, "the directory")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[LdapHub]:
    with running(LdapHub(tmp_path, teams=TEAMS)) as made:
        yield made


def test_groups_of_active_directory_are_teams_by_their_common_name() -> None:
    exec(LINES, {"c": (c := Config())})  # noqa: S102 - the lines that people copy
    groups = ["CN=vision,OU=Groups,DC=example,DC=org", "CN=Speech Lab,OU=Groups,DC=example,DC=org"]
    model = {"auth_state": {"user_attributes": {"memberOf": groups}}}
    assert c.LDAPAuthenticator.post_auth_hook(None, None, model)["groups"] == ["vision", "Speech Lab"]


@pytest.mark.slow
def test_people_of_the_directory_have_its_numbers_and_its_groups_are_teams(hub: LdapHub) -> None:
    with pytest.raises(AssertionError, match="Invalid username or password"):
        Person(hub, "alice")  # with a password that is not hers
    hub.password = "alice's"
    alice = Person(hub, "alice")
    assert hub.api("GET", "/users/alice").json()["groups"] == ["vision"]
    assert "Team Vision: 8 gpu" in " ".join(alice.get("/hub/spawn/alice").text.split())
    alice.launch("")
    spec = json.loads(hub.kubectl("get", "pod", "jupyter-alice", "-o", "json"))["spec"]
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsGroup"]) == (5012, 5012)
    hub.password = "bob's"
    Person(hub, "bob")
    assert hub.api("GET", "/users/bob").json()["groups"] == []
