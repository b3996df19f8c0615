"""A server's certificate, which is read again when it is renewed; client certificates, if they are wanted."""

from __future__ import annotations

import logging
import ssl

from remuda.broker.shared.wire.tls import no_passphrase
from remuda.model.errors import InvalidOption
from remuda.server.watched_files import Watched

_log = logging.getLogger("remuda.server")


class Certificates:
    """The server's side of TLS 1.2 or newer. Clients that connect after a renewal get the new certificate."""

    def __init__(self, certificate: str, key: str, authority: str | None = None, *, required: bool = False) -> None:
        self._files = (certificate, key, authority)
        self._watched = Watched(path for path in self._files if path is not None)
        self.context = _context(*self._files, required=required)
        self._required = required

    def refresh(self, *, force: bool = False) -> None:
        """Read the files again if they have changed. Files that cannot be used change nothing."""
        if not (self._watched.changed() or force):
            return
        try:
            _context(*self._files, required=self._required)
            _load(self.context, *self._files)
        except InvalidOption as error:
            _log.error("%s; the certificate of before is kept", error)
            return
        _log.info("the certificate %s was read again", self._files[0])


def _context(certificate: str, key: str, authority: str | None, *, required: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, certificate, key, authority)
    if authority is not None:
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


def _load(context: ssl.SSLContext, certificate: str, key: str, authority: str | None) -> None:
    try:
        context.load_cert_chain(certificate, key, password=no_passphrase)
    except (OSError, ssl.SSLError) as error:
        raise InvalidOption(f"the certificate {certificate!r} or its key {key!r} cannot be used: {error}") from None
    if authority is not None:
        try:
            context.load_verify_locations(authority)
        except (OSError, ssl.SSLError) as error:
            raise InvalidOption(f"the certificates in {authority!r} cannot be used: {error}") from None
