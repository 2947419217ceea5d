"""Certificates for tests, valid for localhost until 2126: two of a server, both signed by one CA."""

import shutil
from pathlib import Path

_DIRECTORY = Path(__file__).parent
CA = _DIRECTORY / "ca.pem"


def install(name: str, directory: Path, *, with_key: bool = True) -> tuple[Path, Path]:
    """Copy the certificate *name*, ``first`` or ``second``, and its key to *directory*."""
    certificate, key = directory / "tls.crt", directory / "tls.key"
    shutil.copyfile(_DIRECTORY / f"{name}.pem", certificate)
    if with_key:
        shutil.copyfile(_DIRECTORY / f"{name}.key", key)
        key.chmod(0o600)
    return certificate, key
