"""The container image, built without a base image: ``make image``.

Debian's Python and its libraries come from Debian's packages, the Python libraries from lock/runtime.txt, and Alignup
from its wheel. What the image tells the container runtime is in the Containerfile. The image has no shell and no
package manager. The same packages, lock and commit give the same digest.
"""

import argparse
import io
import json
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools import debian, wheels
from tools.oci import Entry, ImageInfo, pack_layer, write_archive

ROOT = Path(__file__).parents[1]
CACHE = ROOT / "build" / "image"
PLACE = "opt/alignup"  #: the virtual environment, as in the Containerfile

#: Python with its standard library, the C++ library of grpcio, and the certificates of public authorities.
DEBIAN = ("python3-minimal", "libpython3-stdlib", "libstdc++6", "ca-certificates")
#: Needed only to install packages or to build documents.
WITHOUT = ("dpkg", "tar", "debconf", "openssl", "perl-base", "install-info")

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NONROOT = 65532
#: Imports all libraries of the image, and with them the shared libraries that they need.
_CHECK = "import alignup.cli.agent, alignup.cli.observe, alignup.cli.schedule, alignup.agent.daemon, alignup.observe, \
aiohttp, cryptography.x509, grpc, httptools, sqlite3, ssl, xxhash, yaml; yaml.CSafeLoader"
_SCRIPT = """#!/{place}/bin/python3
import sys
from {module} import {function}
sys.exit({function}())
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make image", description="Build the container image as an OCI archive.")
    parser.add_argument("--output", type=Path, help="the archive (default: dist/alignup-VERSION-ARCHITECTURE.oci.tar)")
    parser.add_argument("--name", help="of the image (default: docker.io/library/alignup:VERSION)")
    options = parser.parse_args(arguments)

    files, version = root_directory(CACHE)
    architecture = debian.architecture()
    output = options.output or ROOT / "dist" / f"alignup-{version}-{architecture}.oci.tar"
    output.parent.mkdir(parents=True, exist_ok=True)
    _, stages = read_containerfile()
    info = ImageInfo(
        name=options.name or f"docker.io/library/alignup:{version}",
        architecture=architecture,
        created=datetime.fromtimestamp(wheels.source_date(ROOT), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        config=image_config(stages[-1], path=_PATH),
    )
    digest = write_archive(output, files, info)
    print(f"{output}  {info.name}  {output.stat().st_size / 1e6:.1f} MB  {digest}")
    return 0


def root_directory(cache: Path) -> tuple[dict[str, Entry], str]:
    """Return all files of the image, and the version of Alignup; *cache* is a directory for downloads."""
    versions = debian.closure(DEBIAN, without=WITHOUT)
    files = debian_files(debian.download(versions, cache / "debian"))
    python = python_version(files)
    libc = int(versions["libc6"].split(".")[0]), int(re.split(r"[.-]", versions["libc6"])[1])
    libraries = wheels.download(ROOT / "lock" / "runtime.txt", cache / "wheels", python=python, libc=libc)
    with tempfile.TemporaryDirectory() as scratch:
        wheel = wheels.build(ROOT, Path(scratch))
        files |= environment(python, [*libraries, wheel])
    files |= compiled(files, python)
    return files, wheel.name.split("-")[1]


def debian_files(packages: Sequence[Path]) -> dict[str, Entry]:
    """Return the root directory that the packages make."""
    files: dict[str, Entry] = {}
    for path in packages:
        files |= debian.read_package(path)
    authorities = sorted(path for path in files if re.match(r"usr/share/ca-certificates/.+\.crt$", path))
    users = f"root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:{_NONROOT}:{_NONROOT}:nonroot:/:/sbin/nologin\n"
    return {
        **files,
        **{name: Entry(0o777, target=f"usr/{name}") for name in ("bin", "lib", "lib64", "sbin")},
        "etc/passwd": Entry(content=users.encode()),
        "etc/group": Entry(content=f"root:x:0:\nnonroot:x:{_NONROOT}:\n".encode()),
        "etc/ssl/certs/ca-certificates.crt": Entry(content=b"".join(files[path].content for path in authorities)),
        "tmp": Entry(0o1777, directory=True),
        "run": Entry(0o755, directory=True),
        "root": Entry(0o700, directory=True),
    }


def python_version(files: Mapping[str, Entry]) -> str:
    """Return the version of the packages' Python, such as ``3.11``."""
    return files["usr/bin/python3"].target.removeprefix("python")


def environment(python: str, packages: Sequence[Path]) -> dict[str, Entry]:
    """Return a virtual environment with these wheels."""
    files = {
        f"{PLACE}/pyvenv.cfg": Entry(content=f"home = /usr/bin\nversion = {python}\n".encode()),
        f"{PLACE}/bin/python3": Entry(0o777, target="/usr/bin/python3"),
    }
    for path in packages:
        with zipfile.ZipFile(path) as packed:
            for name in packed.namelist():
                if name.endswith("/"):
                    continue
                target = _installed_path(name, python)
                if target:
                    files[target] = Entry(content=packed.read(name))
            if path.name.startswith("alignup-"):
                files |= _programs(packed)
    return files


def _installed_path(name: str, python: str) -> str | None:
    """Return where a member of a wheel is installed; ``None`` for the programs of libraries and C headers."""
    place, _, inside = name.partition("/")
    if not place.endswith(".data"):
        return f"{PLACE}/lib/python{python}/site-packages/{name}"
    kind, _, path = inside.partition("/")
    modules = f"lib/python{python}/site-packages/"
    places = {"purelib": modules, "platlib": modules, "data": ""}
    return f"{PLACE}/{places[kind]}{path}" if kind in places else None


def _programs(packed: zipfile.ZipFile) -> Iterator[tuple[str, Entry]]:
    name = next(member for member in packed.namelist() if member.endswith(".dist-info/entry_points.txt"))
    for program, module, function in re.findall(r"^(\S+) = (\S+):(\S+)$", packed.read(name).decode(), re.MULTILINE):
        text = _SCRIPT.format(place=PLACE, module=module, function=function)
        yield f"{PLACE}/bin/{program}", Entry(0o755, text.encode())


def compiled(files: Mapping[str, Entry], python: str) -> dict[str, Entry]:
    """Return the byte code of all modules: the image cannot keep what a container compiles.

    The image's own Python compiles them, with its own libraries, from a temporary directory.
    """
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        with tarfile.open(fileobj=io.BytesIO(pack_layer(files))) as packed:
            packed.extractall(root, filter="fully_trusted")  # noqa: S202 - files of this image
        modules = [root / "usr" / "lib" / f"python{python}", root / PLACE / "lib" / f"python{python}" / "site-packages"]
        run_python(root, python, "-c", _CHECK, path=modules[1])
        run_python(
            root, python, "-m", "compileall", "-q", "-j1", "--invalidation-mode", "unchecked-hash",
            "-s", str(root), "-p", "/", *map(str, modules),
        )  # fmt: skip
        return {
            str(path.relative_to(root)): Entry(content=path.read_bytes())
            for path in sorted(root.rglob("__pycache__/*.pyc"))
        }


def run_python(root: Path, python: str, *arguments: str, path: Path | None = None) -> None:
    """Run the Python in directory *root* without entering it: its dynamic linker finds its own libraries."""
    linker = next(iter(sorted((root / "usr" / "lib").glob("*/ld-linux-*.so.*"))))
    libraries = sorted({str(path.parent) for path in (root / "usr" / "lib").glob("*-linux-gnu*/libc.so.6")})
    program = root / "usr" / "bin" / f"python{python}"
    settings = {"PYTHONHASHSEED": "0", "PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"}
    subprocess.run(
        [linker, "--library-path", ":".join(libraries), program, *arguments],
        check=True,
        env={"PYTHONHOME": str(root / "usr"), "PYTHONPATH": str(path or ""), **settings},
    )


Instruction = tuple[str, str]  #: in upper case, and its arguments


@dataclass(frozen=True, slots=True)
class Stage:
    image: str  #: that it begins with
    name: str = ""
    instructions: list[Instruction] = field(default_factory=list)

    def of(self, instruction: str) -> list[str]:
        return [arguments for name, arguments in self.instructions if name == instruction]


def read_containerfile(path: Path = ROOT / "Containerfile") -> tuple[dict[str, str], list[Stage]]:
    """Return the arguments before the first stage, and the stages."""
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    lines = [line for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", "").splitlines():
        instruction, _, rest = line.strip().partition(" ")
        if instruction == "ARG" and not stages:
            name, _, value = rest.partition("=")
            arguments[name] = value
        elif instruction == "FROM":
            image, *named = shlex.split(rest)
            stages.append(Stage(image, named[1] if named else ""))
        elif instruction:
            stages[-1].instructions.append((instruction, rest))
    return arguments, stages


def image_config(stage: Stage, *, path: str) -> dict[str, Any]:
    """Return what a stage tells the container runtime, as the ``config`` of an image; *path* is the ``PATH`` before it.

    It knows the instructions LABEL, ENV, USER and ENTRYPOINT.
    """
    environment = _pairs(stage.of("ENV"))
    environment = {name: value.replace("$PATH", path) for name, value in environment.items()}
    return {
        "User": stage.of("USER")[-1],
        "Env": [f"{name}={value}" for name, value in environment.items()],
        "Entrypoint": json.loads(stage.of("ENTRYPOINT")[-1]),
        "Labels": _pairs(stage.of("LABEL")),
    }


def _pairs(lines: list[str]) -> dict[str, str]:
    """Return NAME=VALUE words as a mapping."""
    words = [word.partition("=") for line in lines for word in shlex.split(line)]
    return {name: value for name, _, value in words}


if __name__ == "__main__":
    sys.exit(main())
