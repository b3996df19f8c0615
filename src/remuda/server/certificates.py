"""A server's certificate, which is read again when it is renewed; client certificates, if they are wanted."""

from __future__ import annotations

import logging
import re
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from remuda.broker.shared.wire.tls import no_passphrase
from remuda.model.errors import InvalidOption
from remuda.server.watched_files import Watched

_log = logging.getLogger("remuda.server")
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.S)
_UTC_TIME: Final = 0x17
_VERSION: Final = 0xA0
_VALIDITY: Final = 3
"""Its place in a certificate, behind serial number, algorithm and issuer."""


class Certificates:
    """The server's side of TLS 1.2 or newer. Clients that connect after a renewal get the new certificate."""

    def __init__(self, certificate: str, key: str, authority: str | None = None, *, required: bool = False) -> None:
        self._files = (certificate, key, authority)
        self._watched = Watched(path for path in self._files if path is not None)
        self.context = _context(*self._files, required=required)
        self._required = required

    def expires(self) -> datetime:
        """When the first of the server's certificate and those it brings along is no longer valid."""
        found = _PEM.findall(Path(self._files[0]).read_text("ascii", "ignore"))
        return min(_expiry(ssl.PEM_cert_to_DER_cert(one)) for one in found)

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


def _expiry(certificate: bytes) -> datetime:
    """The end of a certificate's validity: Python reads it only of a peer's certificate that it trusts."""
    _, start, _ = _element(certificate, 0)  # the certificate
    _, at, _ = _element(certificate, start)  # what is signed of it
    if certificate[at] == _VERSION:
        at = _element(certificate, at)[2]
    for _ in range(_VALIDITY):
        at = _element(certificate, at)[2]
    _, at, _ = _element(certificate, at)
    kind, start, stop = _element(certificate, _element(certificate, at)[2])
    text = certificate[start:stop].decode("ascii")
    if kind == _UTC_TIME:  # two digits of the year, of 1950 to 2049
        text = f"{'19' if text[:2] >= '50' else '20'}{text}"
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """The element at a place in DER: its tag, and where its content starts and stops."""
    length, start = der[at + 1], at + 2
    if length > 0x7F:
        size = length & 0x7F
        length, start = int.from_bytes(der[start : start + size], "big"), start + size
    return der[at], start, start + length
