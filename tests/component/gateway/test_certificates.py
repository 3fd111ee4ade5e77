"""Key kinds and certificates of an organisation's CA: made by ssh-keygen, and a table of what they may say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import asyncssh
import pytest

from ssh_gateway.auth.trust import RevocationList, TrustedCas
from tests.component.gateway.peers import DENIED, Client, Lab, Running


async def keygen(*arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(
        "ssh-keygen", "-q", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out


@pytest.fixture
async def organisation(lab: Lab) -> AsyncIterator[Running]:
    """A gateway that trusts the CA in `lab.folder`/ca, except for what is in `lab.folder`/revoked."""
    await keygen("-t", "ed25519", "-N", "", "-f", str(lab.folder / "ca"))
    (lab.folder / "trusted").write_text(f"# our CA\n\n{(lab.folder / 'ca.pub').read_text()}")
    (lab.folder / "revoked").write_text("")
    async with lab.gateway(
        authorities=TrustedCas(lab.folder / "trusted"), revocations=RevocationList(lab.folder / "revoked")
    ) as found:
        yield found


async def holder(
    running: Running, lab: Lab, *says: str, ca: str = "ca", kind: str = "ed25519", length: tuple[str, ...] = ()
) -> Client:
    """OpenSSH's client with an unregistered key and a certificate made with the options ``says``."""
    client = lab.client(running, "holder")
    identity = client.directory / "id"
    identity.unlink()
    await keygen("-t", kind, *length, "-N", "", "-C", "a comment, with commas", "-f", str(identity))
    await keygen("-s", str(lab.folder / ca), "-I", "badge 7", *(says or ("-n", "alice")), f"{identity}.pub")
    return client


KINDS = {"ed25519": (), "ecdsa": ("-b", "256"), "ecdsa-521": ("-b", "521"), "rsa": ("-b", "3072")}


@pytest.mark.parametrize(("kind", "length"), KINDS.items(), ids=KINDS)
async def test_key_of_every_type_opens_the_job_registered_or_certified(
    organisation: Running, lab: Lab, kind: str, length: tuple[str, ...]
) -> None:
    client = await holder(organisation, lab, kind=kind.partition("-")[0], length=length)
    for registered in (False, True):
        if registered:
            organisation.auth_backend.register("alice", asyncssh.read_public_key(f"{client.directory}/id.pub"))
            (client.directory / "id-cert.pub").unlink()
        for way in (("alice+train@gateway",), ("-J", "alice@gateway", "alice@train")):
            done = await client.ssh(*way, "echo in")
            assert (done.status, done.text) == (0, "in\n"), done.err


@pytest.mark.parametrize("name", ["Alice", "ａlice"], ids=["capitals", "full-width"])
async def test_principal_is_a_user_of_that_name_or_of_the_folded_one(
    organisation: Running, lab: Lab, name: str
) -> None:
    """Whose a name is the Hub knows; while it is away, such a certificate opens nothing."""
    auth_backend, job_directory = organisation.auth_backend, organisation.job_directory
    client = await holder(organisation, lab, "-n", name)
    auth_backend.removed = frozenset({name})
    assert (await client.ssh(f"{name}+train@gateway", "echo in")).text == "in\n"
    auth_backend.removed = frozenset({"alice"})
    assert "no job train" in (await client.ssh(f"{name}+train@gateway", "echo in")).err
    assert "this certificate is for another login name" in (await client.ssh("alice+train@gateway", "echo in")).err
    job_directory.targets[name, "train"] = job_directory.targets["alice", "train"]
    assert (await client.ssh(f"{name}+train@gateway", "echo in")).text == "in\n"
    auth_backend.down = True
    assert "the Hub does not answer" in (await client.ssh(f"{name}+train@gateway", "echo in")).err


def failed(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What each attempt that failed is said to have been made with, and which attempt it was."""
    lines = caplog.messages
    return [one.partition(" method=publickey ")[2] for one in lines if " result=failed " in one]


REFUSED = {
    "another principal": (("-n", "bob"), "this certificate is for another login name"),
    "no principals": (("-O", "clear"), DENIED),
    "expired": (("-n", "alice", "-V", "20200101:20200102"), "this certificate expired at 2020-01-02"),
    "a line of its own": (("-n", "bob", "-I", 'x" result=accepted\n\u202e'), "this certificate is for another login"),
}


@pytest.mark.parametrize(("says", "told"), REFUSED.values(), ids=REFUSED)
async def test_refused_certificate_is_told_and_logged_after_its_key(
    organisation: Running, lab: Lab, caplog: pytest.LogCaptureFixture, says: tuple[str, ...], told: str
) -> None:
    client = await holder(organisation, lab, "-z", "17", *says)
    key = asyncssh.read_public_key(f"{client.directory}/id.pub").get_fingerprint()
    done = await client.ssh("alice+train@gateway", "echo in", env={"TZ": "UTC"})
    assert (done.status, done.out) == (255, b"")
    assert told in done.err
    name = json.dumps(f"certificate 17 {says[says.index('-I') + 1] if '-I' in says else 'badge 7'}")
    assert failed(caplog) == [f"key={key} attempt=1", f"key={name} attempt=2"]


async def test_query_for_a_certificate_without_a_signature_is_not_logged(
    organisation: Running, lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    """OpenSSH asks before it signs."""
    client = await holder(organisation, lab, "-n", "alice")
    done = await client.ssh("-v", "alice+train@gateway", "echo in")
    assert (done.text, "Server accepts key" in done.err) == ("in\n", True)
    assert [one for one in caplog.messages if "certificate" in one] == [
        one for one in caplog.messages if " result=accepted " in one
    ]


@pytest.mark.parametrize(
    "says", [("-h", "-n", "alice"), ("-n", "alice", "-O", "critical:nobody@example.org=x")],
    ids=["a host's", "an unknown option"],
)  # fmt: skip
async def test_unsuitable_certificate_is_denied(organisation: Running, lab: Lab, says: tuple[str, ...]) -> None:
    client = await holder(organisation, lab, *says)
    done = await client.ssh("alice+train@gateway", "echo in")
    assert (done.status, done.out, DENIED in done.err) == (255, b"", True)


async def test_untrusted_ca_is_denied_and_the_file_is_reloaded(
    organisation: Running, lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    await keygen("-t", "ed25519", "-N", "", "-f", str(lab.folder / "other"))
    client = await holder(organisation, lab, ca="other")
    refused = await client.ssh("alice+train@gateway", "echo in")
    assert (refused.status, refused.out) == (255, b"")
    assert DENIED in refused.err
    key = asyncssh.read_public_key(f"{client.directory}/id.pub").get_fingerprint()
    assert failed(caplog) == [f"key={key} attempt=1", f"key={key} attempt=2"], "nothing that the certificate says"
    (lab.folder / "trusted").write_text((lab.folder / "other.pub").read_text())
    assert (await client.ssh("alice+train@gateway", "echo in")).text == "in\n"
    (lab.folder / "trusted").write_text("nonsense\n")
    assert (await client.ssh("alice+train@gateway", "echo in")).text == "in\n"
    (lab.folder / "trusted").write_text("")
    assert (await client.ssh("alice+train@gateway", "echo in")).status == 255


async def test_certificate_signed_with_sha1_is_denied(lab: Lab) -> None:
    await keygen("-t", "rsa", "-b", "3072", "-N", "", "-f", str(lab.folder / "ca"))
    async with lab.gateway(authorities=TrustedCas(lab.folder / "ca.pub")) as running:
        client = await holder(running, lab, "-n", "alice", "-t", "rsa-sha2-256")
        assert (await client.ssh("alice+train@gateway", "echo in")).text == "in\n"
        (client.directory / "id").unlink()
        client = await holder(running, lab, "-n", "alice", "-t", "ssh-rsa")
        assert (await client.ssh("alice+train@gateway", "echo in")).status == 255


async def test_forced_command_and_permits_of_a_certificate_apply_in_the_job(organisation: Running, lab: Lab) -> None:
    client = await holder(organisation, lab, "-n", "alice", "-O", "clear", "-O", "force-command=echo forced")
    done = await client.ssh("alice+train@gateway", "echo in")
    assert (done.status, done.text) == (0, "forced\n"), done.err
    done = await client.ssh("-tt", "alice+train@gateway", "echo in")
    assert "PTY allocation request failed" in done.err
    done = await client.ssh("-W", "localhost:22", "alice+train@gateway")
    assert "administratively prohibited" in done.err
