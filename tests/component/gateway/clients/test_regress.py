"""OpenSSH's own regress scripts, as Debian packages them: what passes directly passes through the gateway.

The scripts and their harness (`test-exec.sh`) are as they came. What they take for `ssh` is a wrapper whose options
come first, and so win: they lead to the job, in one of the three ways. Scripts that edit the server's configuration, or
test a program alone, have no place here.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.component.gateway.clients.ways import DEBIAN, Desk, Way, program
from tests.component.gateway.peers import Done, find_sshd
from tests.harness.ports import free_port

SCRIPTS = [
    "broken-pipe", "connect", "connect-uri", "exit-status", "exit-status-signal", "stderr-after-eof", "stderr-data",
    "transfer", "yes-head",
]  # fmt: skip

pytestmark = pytest.mark.slow

WRAPPER = """\
#!/bin/sh
# Questions about ssh itself (-Q) and runs without our configuration (-G) go unchanged.
case " $* " in *" -Q "*) exec {ssh} "$@" ;; esac
exec {ssh} {options} "$@"
"""


def regress() -> Path:
    """The folder of the scripts, unpacked or installed."""
    for root in (DEBIAN, Path("/")):
        if (root / "usr/lib/openssh/regress/test-exec.sh").exists():
            return root / "usr/lib/openssh/regress"
    pytest.skip("no openssh-tests: `make test` unpacks them")


def wrapper(desk: Desk, way: Way) -> Path:
    """An ssh that goes to the job and ignores the host it is given."""
    host, port, user = desk.address(way)
    alias = "job" if way is Way.DIRECT else "gateway"
    options = {
        "HostName": host, "Port": port, "User": user, "HostKeyAlias": alias, "IdentityFile": desk.identity,
        "IdentitiesOnly": "yes", "UserKnownHostsFile": desk.directory / "known_hosts",
        "ProxyCommand": f"'{desk.openssh} -W train:22 jumphost'" if way is Way.JUMP else "none",
    }  # fmt: skip
    path = desk.directory / f"ssh-{way.value}"
    path.write_text(
        WRAPPER.format(ssh=program("ssh"), options=" ".join(f"-o {name}={value}" for name, value in options.items()))
    )
    path.chmod(0o755)
    return path


async def run_script(desk: Desk, way: Way, name: str) -> Done:
    """A script of OpenSSH's, in a copy of its folder, by an ordinary user of a name space."""
    folder = desk.directory / f"regress-{way.value}"
    shutil.copytree(regress(), folder)
    env = {
        "TEST_SHELL": "sh",
        "TEST_SSH_SSH": str(wrapper(desk, way)),
        "TEST_SSH_SSHD": find_sshd(),
        "TEST_SSH_PORT": str(free_port()),
        "TEST_SSH_SFTPSERVER": "/usr/lib/openssh/sftp-server",
        "TEST_SSH_UNSAFE_PERMISSIONS": "1",
        "OBJ": str(folder), "BUILDDIR": str(folder), "SUDO": "",
    }  # fmt: skip
    command = desk.sshd.as_person(f"sh test-exec.sh {folder} {folder}/{name}.sh")
    return await desk.run("env", "-C", str(folder), *command, env=env, seconds=120)


@pytest.mark.parametrize("name", SCRIPTS)
async def test_script_of_openssh_passes(desk: Desk, name: str) -> None:
    async def case(way: Way) -> tuple[int, str]:
        done = await run_script(desk, way, name)
        assert done.status == 0, (way, done.text, done.err)
        return done.status, done.text

    status, said = await desk.each(case)
    assert said.startswith("ok ") or "\nok " in said
    assert "SKIPPED" not in said
    assert status == 0
