"""The certificate of the server: read from files, and again when they change."""

import logging
import ssl
import stat
from pathlib import Path

from alignup.align.errors import ListenError

_UNSAFE_MODE = 0o027  #: bits that a private key must not have: the group may read it, others may not
_log = logging.getLogger(__name__)


class ServerCertificate:
    """A certificate chain and its private key, in PEM files.

    A renewed certificate is used for new connections. If the new files cannot be used, the old certificate stays. With
    *client_authority*, the certificates of an authority in a PEM file, clients need a certificate of that authority.
    """

    def __init__(self, certificate: Path, private_key: Path, *, client_authority: Path | None = None) -> None:
        self._files = certificate, private_key
        self._client_authority = client_authority
        try:
            self._loaded = self._versions()
            self._context = self._load()
        except (OSError, ValueError) as error:
            authority = f" and the authority {client_authority}" if client_authority else ""
            raise ListenError(
                f"cannot use the certificate {certificate} with the key {private_key}{authority}: {_reason(error)}"
            ) from error

    def context(self) -> ssl.SSLContext:
        """Return the TLS settings for a new connection."""
        try:
            versions = self._versions()
        except OSError:  # the files are being replaced
            return self._context
        if versions != self._loaded:
            self._loaded = versions
            try:
                self._context = self._load()
            except (OSError, ValueError) as error:
                _log.warning("the new certificate %s cannot be used: %s", self._files[0], _reason(error))
        return self._context

    def _versions(self) -> tuple[tuple[int, ...], ...]:
        files = (*self._files, self._client_authority) if self._client_authority else self._files
        found = [path.stat() for path in files]
        return tuple((one.st_dev, one.st_ino, one.st_mtime_ns, one.st_size, one.st_mode) for one in found)

    def _load(self) -> ssl.SSLContext:
        certificate, private_key = self._files
        for path in self._files:
            if not path.is_file():  # reading a pipe would block
                raise ValueError(f"{path} is not a regular file")
        mode = stat.S_IMODE(private_key.stat().st_mode)
        if mode & _UNSAFE_MODE:
            raise ValueError(f"the key is accessible to other users (mode {mode:04o}); run: chmod 600 {private_key}")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, private_key, password=_no_password)
        if reason := _invalidity(context, certificate):
            _log.warning("clients will reject the certificate %s: %s", certificate, reason)
        if self._client_authority is not None:
            context.load_verify_locations(self._client_authority)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _invalidity(context: ssl.SSLContext, certificate: Path) -> str:
    """Why a client that trusts *certificate* itself rejects it now: it has expired, or is not valid yet."""
    trusting = ssl.create_default_context(cafile=str(certificate))
    trusting.check_hostname = False
    trusting.verify_flags = ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = trusting.wrap_bio(to_client, to_server)
    for side in (client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
        except ssl.SSLError:  # it waits for the other side, or fails for a reason that is none of the certificate
            continue
    return ""


def _no_password() -> str:
    raise ValueError("the key is encrypted; decrypt it, because the agent cannot ask for a password")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return {"KEY_VALUES_MISMATCH": "the key belongs to another certificate"}.get(
            error.reason, "they are not a certificate and a private key in PEM format"
        )
    return str(getattr(error, "strerror", None) or error)
