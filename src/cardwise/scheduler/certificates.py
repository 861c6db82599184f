"""The certificates of one TLS door, read again when their files change: a renewal needs no restart.

Every handshake gets the context that was made last. A new context is made whole or not at all, so files that are half
written, missing or wrong leave the old one in force, and an authority that is taken out of its file is trusted no more.
Connections that are open stay as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path

import structlog

from cardwise.errors import UserError
from cardwise.files import plain

log = structlog.get_logger()

PERIOD_S = 10.0
"""How often the files are looked at. A kubelet takes a minute to show a renewed secret anyway."""
_Stamp = tuple[int, ...] | None


class Certificates:
    """context: what the server listens with. It hands each handshake over to the files' latest."""

    def __init__(self, cert_file: str, key_file: str = "", client_ca_file: str = "") -> None:
        """Read the files. Raises UserError if they cannot be used.

        client_ca_file: who shows a certificate must have it from this authority; whether to ask is up to the verbs.
        """
        self._cert_file, self._key_file, self._client_ca_file = cert_file, key_file, client_ca_file
        self._stamps = self._look()
        self._latest = self._read()
        self.context = self._read()
        self.context.sni_callback = self._hand_over

    async def follow(self) -> None:
        """Look at the files now and then, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            self.renew()

    def renew(self) -> None:
        """Read the files again if they changed; if they cannot be used, say so once and go on with the old ones."""
        stamps = self._look()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            self._latest = self._read()
        except UserError as error:
            log.error("renewed certificates cannot be used, the old ones stay", why=str(error))
        else:
            log.info("certificates renewed", cert=self._cert_file)

    def _hand_over(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Called at the beginning of each handshake, also of those without a server name."""
        connection.context = self._latest

    def _look(self) -> list[_Stamp]:
        return [_stamp(each) for each in (self._cert_file, self._key_file, self._client_ca_file) if each]

    def _read(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        files = {
            "tls-cert-file": self._cert_file,
            "tls-key-file": self._key_file,
            "client-ca-file": self._client_ca_file,
        }
        for key, file in files.items():
            if file:
                _must_open(key, file)
        with _blamed_on("tls-cert-file", self._cert_file, "give a PEM certificate and its key"):
            # a password: without one OpenSSL would ask for it on the terminal, and everything would wait
            context.load_cert_chain(self._cert_file, self._key_file or None, password="")
        if self._client_ca_file:
            with _blamed_on("client-ca-file", self._client_ca_file, "give PEM certificates of authorities"):
                context.load_verify_locations(self._client_ca_file)
            context.verify_mode = ssl.CERT_OPTIONAL  # probes show none; the verbs ask for one
        return context


def _must_open(key: str, file: str) -> None:
    """OpenSSL does not say which of two files it could not read."""
    with _blamed_on(key, file, "give a file that can be read"), Path(file).open("rb"):
        pass


@contextlib.contextmanager
def _blamed_on(key: str, file: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as exc:  # SSLErrors are OSErrors; a ValueError: a NUL in the name
        why = exc.strerror if isinstance(exc, OSError) and exc.strerror else exc
        raise UserError(f"{key} {plain(file)}: {why}; {remedy}") from exc


def _stamp(file: str) -> _Stamp:
    """What changes when the file does, also behind a link; None while it is not there."""
    try:
        found = Path(file).stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
