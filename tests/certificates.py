"""Certificates for tests: those of a server at localhost, all signed by one CA that exists only in this process."""

import functools
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

EXPIRED = "expired"  #: the name of a certificate that was valid until yesterday


@functools.cache
def _authority() -> trustme.CA:
    return trustme.CA()


@functools.cache
def _server(name: str) -> trustme.LeafCert:
    ended = datetime.now(UTC) - timedelta(days=1) if name == EXPIRED else None
    return _authority().issue_cert("localhost", "127.0.0.1", "::1", common_name=name, not_after=ended)


@functools.cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def ca_file() -> Path:
    """Return the file with the certificate of the CA."""
    path = Path(_directory().name) / "ca.pem"
    if not path.exists():
        _authority().cert_pem.write_to_path(path)
    return path


def install(name: str, directory: Path, *, with_key: bool = True) -> tuple[Path, Path]:
    """Write the certificate *name* and its key to *directory*; a name stands for the same certificate every time."""
    certificate, key = directory / "tls.crt", directory / "tls.key"
    certificate.write_bytes(b"".join(part.bytes() for part in _server(name).cert_chain_pems))
    if with_key:
        key.unlink(missing_ok=True)
        key.touch(mode=0o600)
        key.write_bytes(_server(name).private_key_pem.bytes())
    return certificate, key
