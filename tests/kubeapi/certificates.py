"""Certificates made with openssl: an authority, and what it signs."""

import shutil
import subprocess
from pathlib import Path

import pytest

SUBJECT = "/O=alignup/CN="


class Authority:
    """A certificate authority in a directory."""

    def __init__(self, directory: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("not installed: openssl (Debian: apt-get install openssl)")
        self.directory = directory
        self.certificate = directory / "ca.crt"
        self._key = directory / "ca.key"
        self._run("req", "-x509", *self._new_key(self._key), "-subj", f"{SUBJECT}authority", "-out", self.certificate)

    def sign(self, name: str, *, extensions: str) -> tuple[Path, Path]:
        """Return a certificate and its key."""
        certificate, key, request = (self.directory / f"{name}.{kind}" for kind in ("crt", "key", "csr"))
        config = self.directory / f"{name}.cnf"
        config.write_text(extensions)
        self._run("req", *self._new_key(key), "-subj", f"{SUBJECT}{name}", "-out", request)
        signing = ("-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial", "-extfile", config)
        self._run("x509", "-req", "-in", request, *signing, "-days", "2", "-out", certificate)
        return certificate, key

    def _new_key(self, path: Path) -> tuple[object, ...]:
        return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-keyout", path)

    def _run(self, *arguments: object) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)  # noqa: S603, S607 - ours
