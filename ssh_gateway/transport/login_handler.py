"""What a server leg (`wire.ServerLeg`) asks about the person in front of it."""

from __future__ import annotations

from abc import abstractmethod

import asyncssh

from ssh_gateway.core.certificates import UserCertificate


class LoginHandler(asyncssh.SSHServer):
    """One person, from the greeting on."""

    @abstractmethod
    async def proven(self, username: str, key: asyncssh.SSHKey) -> bool:
        """The signature of ``key`` was verified just now: may the person in? SUCCESS follows on True."""

    @abstractmethod
    def unreadable_key(self) -> None:
        """The attempt that is refused next is with something that is no key, or no signature that is taken."""

    @abstractmethod
    def trusts(self, ca: asyncssh.SSHKey, certificate: UserCertificate) -> bool:
        """Whether this certificate, which that key signed, is looked at; also asked without the client's signature."""

    @abstractmethod
    async def proven_by_certificate(self, username: str, certificate: UserCertificate) -> bool:
        """As `proven`, of a key that a trusted CA has signed; what the certificate says is the door's to judge."""

    @abstractmethod
    def attempt_failed(self) -> str | None:
        """An attempt was refused; a sentence ends the connection, ``None`` lets the client try again."""

    @abstractmethod
    def stream_refused(self, why: str) -> None:
        """A stream of ``ssh -J`` was refused before the door was asked for it."""

    @abstractmethod
    def too_late(self) -> str:
        """The sentence for somebody who took longer than the login may take."""
