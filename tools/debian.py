"""Files of Debian packages, without installing them: ``apt-get download``, ``dpkg-deb``, and no scripts of packages."""

import io
import re
import subprocess
import tarfile
from collections.abc import Collection, Iterable
from pathlib import Path

from tools.oci import Entry

#: Directories that are links in a Debian system; packages may still use the old paths.
_MERGED = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")

#: Documents that no program reads. Licenses (``copyright``) stay.
_LEFT_OUT = re.compile(r"usr/share/(man|info|locale|lintian|bug|menu|doc-base|pixmaps|applications)/|usr/share/doc/.+")
_LICENSE = re.compile(r"usr/share/doc/[^/]+/copyright$")


def architecture() -> str:
    """Return Debian's name of this machine's architecture, which for ``amd64`` and ``arm64`` is also Go's."""
    return _run("dpkg", "--print-architecture").decode().strip()


def closure(names: Iterable[str], *, without: Collection[str]) -> dict[str, str]:
    """Return the versions of the packages *names* and of all that they depend on, except those in *without*."""
    versions: dict[str, str] = {}
    pending = list(names)
    while pending:
        name = pending.pop()
        if name in versions or name in without:
            continue
        fields = _fields(_run("apt-cache", "show", "--no-all-versions", name).decode())
        versions[name] = fields["Version"]
        pending += _first_alternatives(fields.get("Pre-Depends", ""), fields.get("Depends", ""))
    return dict(sorted(versions.items()))


def download(versions: dict[str, str], into: Path) -> list[Path]:
    """Download the packages that *into* does not have, and return the files of all of them."""
    into.mkdir(parents=True, exist_ok=True)
    missing = [f"{name}={version}" for name, version in versions.items() if not _found(into, name, version)]
    if missing:
        _run("apt-get", "download", "-qq", "-o", "APT::Sandbox::User=", *missing, cwd=into)
    return [path for name, version in versions.items() for path in _found(into, name, version)]


def read_package(path: Path) -> dict[str, Entry]:
    """Return the files of a package, and its description where scanners of images look for it."""
    with tarfile.open(fileobj=io.BytesIO(_run("dpkg-deb", "--fsys-tarfile", str(path)))) as packed:
        paths = {member: _merged_path(member.name) for member in packed}
        files = {path: _entry(packed, member) for member, path in paths.items() if _is_needed(path)}
    control = _run("dpkg-deb", "--field", str(path))
    name = path.name.partition("_")[0]
    return {**files, f"var/lib/dpkg/status.d/{name}": Entry(content=control)}


def _entry(packed: tarfile.TarFile, member: tarfile.TarInfo) -> Entry:
    if member.isdir():
        return Entry(member.mode, directory=True)
    if member.issym():
        return Entry(0o777, target=member.linkname)
    content = packed.extractfile(member)  # follows hard links
    if content is None:
        raise ValueError(f"{member.name}: neither a file, a directory nor a link")
    return Entry(member.mode & 0o755, content.read())  # no set-user-id programs


def _is_needed(path: str) -> bool:
    return path not in {"", *_MERGED} and (not _LEFT_OUT.match(path) or bool(_LICENSE.match(path)))


def _merged_path(name: str) -> str:
    path = name.removeprefix("./").rstrip("/").removeprefix(".")
    return f"usr/{path}" if path.split("/", 1)[0] in _MERGED and "/" in path else path


def _fields(text: str) -> dict[str, str]:
    """Return the fields of a control file's first paragraph."""
    paragraph = text.partition("\n\n")[0].replace("\n ", " ")
    return {name: value.strip() for name, _, value in (line.partition(":") for line in paragraph.splitlines())}


def _first_alternatives(*dependencies: str) -> list[str]:
    """Return the package names of ``a (>= 1), b:any | c``: a and b."""
    parts = [part.strip() for text in dependencies for part in text.split(",")]
    return [re.split(r"[\s:(|]", part, maxsplit=1)[0] for part in parts if part]


def _found(directory: Path, name: str, version: str) -> list[Path]:
    return list(directory.glob(f"{name}_{version.replace(':', '%3a')}_*.deb"))


def _run(*command: str, cwd: Path | None = None) -> bytes:
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, cwd=cwd)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: exit code {done.returncode}")
    return done.stdout
