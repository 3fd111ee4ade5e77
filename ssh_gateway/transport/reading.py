"""Decoding of a peer's bytes with asyncssh's own decoders: keys, certificates, the reason of a DISCONNECT.

Any peer may send any bytes: undecodable input is told apart from errors of the gateway itself.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

import asyncssh
from asyncssh.packet import PacketDecodeError, SSHPacket
from asyncssh.public_key import CERT_TYPE_USER, SSHOpenSSHCertificate, decode_ssh_certificate, decode_ssh_public_key
from cryptography.exceptions import UnsupportedAlgorithm

from ssh_gateway.core.certificates import UserCertificate
from ssh_gateway.core.packets import text
from ssh_gateway.core.proof import PERMITS, SessionBounds
from ssh_gateway.transport.keys import rsa_bits


def signed_with(signature: bytes) -> str:
    """Returns the algorithm that a signature names; PacketDecodeError if there is none."""
    return str(SSHPacket(signature).get_string().decode("ascii", "replace"))


def is_signed_well(certificate: SSHOpenSSHCertificate) -> bool:
    """True if an RSA key of a CA did not use SHA-1: the certificate ends in algorithm and signature, each a string."""
    ca = certificate.signing_key
    if ca.algorithm != b"ssh-rsa":
        return True
    size = (rsa_bits(ca) + 7) // 8
    ends = [text(name) + size.to_bytes(4, "big") for name in (b"rsa-sha2-256", b"rsa-sha2-512")]
    return any(certificate.public_data[:-size].endswith(end) for end in ends)


def read_certificate(line: str) -> UserCertificate:
    """Returns the content of an OpenSSH certificate in the format of a *-cert.pub file; KeyImportError if invalid."""
    found = asyncssh.import_certificate(line)
    if not isinstance(found, SSHOpenSSHCertificate):
        raise asyncssh.KeyImportError("an OpenSSH certificate expected")
    return certificate_of(found)


def certificate_in(key_data: bytes) -> UserCertificate | None:
    """Returns the content of a certificate in SSH's encoding; None for a plain key."""
    try:
        found = decode_ssh_certificate(key_data)
    except asyncssh.KeyImportError:
        return None
    return certificate_of(found) if isinstance(found, SSHOpenSSHCertificate) else None


def certificate_of(found: SSHOpenSSHCertificate) -> UserCertificate:
    """Returns the content of a decoded certificate."""
    options: Mapping[str, Any] = found.options
    return UserCertificate(
        key_id=found._key_id,
        serial=found._serial,
        for_users=found._cert_type == CERT_TYPE_USER,
        principals=tuple(found.principals),
        valid_after=found._valid_after,
        valid_before=found._valid_before,
        addresses=tuple(options.get("source-address") or ()),
        bounds=SessionBounds(
            frozenset(name for name in PERMITS if options.get(f"permit-{name}")), options.get("force-command")
        ),
        key=found.key.get_fingerprint(),
        ca=found.signing_key.get_fingerprint(),
    )


def is_unreadable(problem: BaseException) -> bool:
    """True if asyncssh failed on bytes that are no text, or end too early; asyncssh does not catch that everywhere."""
    if not isinstance(problem, PacketDecodeError | UnicodeDecodeError):
        return False
    *_, (frame, _) = traceback.walk_tb(problem.__traceback__)
    return str(frame.f_globals["__name__"]).startswith("asyncssh.")


def is_key(data: bytes) -> bool:
    """True if this can be a key or a certificate; invalid numbers, and points that are not on their curve, cannot."""
    for read in (decode_ssh_certificate, decode_ssh_public_key):
        try:
            read(data)
        except asyncssh.KeyImportError:
            continue
        except (ArithmeticError, ValueError, UnsupportedAlgorithm):  # of `cryptography`, which asyncssh does not expect
            return False
        return True
    return False


def read_disconnect(payload: bytes) -> tuple[int, str]:
    """Returns code and reason of a DISCONNECT, fit for a terminal."""
    packet = SSHPacket(payload[1:])
    try:
        code, reason = packet.get_uint32(), packet.get_string().decode("utf-8", "replace")[:500]
        return code, "".join(char if char.isprintable() else "?" for char in reason)  # shown at the other end
    except PacketDecodeError:
        return asyncssh.DISC_PROTOCOL_ERROR, ""
