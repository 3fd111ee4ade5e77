"""The interface between the client's leg (`server.Downstream`) and the login of its user."""

from __future__ import annotations

from abc import abstractmethod

import asyncssh

from ssh_gateway.core.certificates import UserCertificate


class LoginHandler(asyncssh.SSHServer):
    """The login of one client, from the greeting on."""

    @abstractmethod
    async def proven(self, username: str, key: asyncssh.SSHKey) -> bool:
        """Tells if the user may enter, after the signature of ``key`` was verified just now; SUCCESS follows on
        True.
        """

    @abstractmethod
    def unreadable_key(self) -> None:
        """Notes that the attempt refused next had no valid key, or a signature of an unaccepted algorithm."""

    @abstractmethod
    def trusts(self, ca: asyncssh.SSHKey, certificate: UserCertificate) -> bool:
        """True if a certificate signed by ``ca`` is accepted for checking; also called without the client's
        signature.
        """

    @abstractmethod
    async def proven_by_certificate(self, username: str, certificate: UserCertificate) -> bool:
        """As `proven`, for a key that a trusted CA has signed; this handler judges the certificate's content."""

    @abstractmethod
    def attempt_failed(self) -> str | None:
        """Notes a refused attempt; a returned sentence ends the connection, ``None`` lets the client try again."""

    @abstractmethod
    def stream_refused(self, why: str) -> None:
        """Notes a stream of ``ssh -J`` that was refused before this handler was called for it."""

    @abstractmethod
    def too_late(self) -> str:
        """Returns the sentence for a client that exceeded the time for a login."""
