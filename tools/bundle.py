"""One executable file for machines without Python: ``make bundle``.

The file is a shell script with a compressed archive after it: the files of the container image, Python and the C
library among them. When it is started for the first time it unpacks them into the user's cache; later it only starts
them. Under the name ``kubectl-alignup`` it is the plugin of kubectl. It needs Linux on the same kind of processor,
``sh``, ``tar``, ``gzip`` and ``tail``, and no privileges.
"""

import argparse
import gzip
import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools import debian, image
from tools.oci import Entry, pack_layer

#: Files that only a container needs.
_WITHOUT = ("etc/passwd", "etc/group", "var/", "tmp", "run", "root")

_HEADER = """#!/bin/sh
# alignup {version}, with Python and its libraries. ALIGNUP_UNPACK chooses the directory where it is unpacked.
set -eu
place=${{ALIGNUP_UNPACK:-${{XDG_CACHE_HOME:-${{HOME:-/tmp}}/.cache}}/alignup}}
root=$place/{digest}
if [ ! -x "$root/start" ]; then
    mkdir -p "$place"
    new=$(mktemp -d "$place/unpack.XXXXXX")
    trap 'rm -rf "$new"' EXIT
    tail -n +{first} "$0" | gzip -dc | tar -xf - -C "$new"
    mv "$new" "$root" 2>/dev/null || [ -x "$root/start" ]
    trap - EXIT
fi
case ${{0##*/}} in
kubectl-*) exec "$root/kubectl" "$@" ;;
*) exec "$root/start" "$@" ;;
esac
exit
"""

#: Starts Python through its own dynamic linker, so that no variable is set which the commands of users would inherit.
_START = """#!/bin/sh
root=$(cd "$(dirname "$0")" && pwd)
exec "$root/usr/bin/python3" -I -c 'import sys
sys.path.insert(0, sys.argv.pop(1))
from alignup.cli import {function}
{function}()' "$root/{packages}" "$@"
"""
_PYTHON = """#!/bin/sh
usr=$(cd "$(dirname "$0")/.." && pwd)
exec "$usr/{linker}" --library-path "$usr/{libraries}" --argv0 "$usr/bin/python3" "$usr/bin/python{version}" "$@"
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make bundle", description="Build one file that runs without Python.")
    parser.add_argument("--output", type=Path, help="the file (default: dist/alignup-VERSION-ARCHITECTURE)")
    options = parser.parse_args(arguments)
    files, version = image.root_directory(image.CACHE)
    output = options.output or image.ROOT / "dist" / f"alignup-{version}-linux-{debian.architecture()}"
    output.parent.mkdir(parents=True, exist_ok=True)
    write_bundle(output, bundle_files(files), version=version)
    print(f"{output}  {output.stat().st_size / 1e6:.1f} MB")
    return 0


def bundle_files(files: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return the files of the bundle, made from those of the image."""
    python = image.python_version(files)
    linker = next(path for path in sorted(files) if path.startswith("usr/lib/") and "/ld-linux-" in path)
    kept = {path: entry for path, entry in files.items() if not path.startswith(_WITHOUT) and "/" in path}
    packages = f"{image.PLACE}/lib/python{python}/site-packages"
    starts = {"start": "main", "kubectl": "kubectl_main"}
    scripts = {path: _START.format(packages=packages, function=function) for path, function in starts.items()}
    inside = linker.removeprefix("usr/")
    wrapper = _PYTHON.format(linker=inside, libraries=inside.rpartition("/")[0], version=python)
    added = {**scripts, "usr/bin/python3": wrapper}
    return {**kept, **{path: Entry(0o755, text.encode()) for path, text in added.items()}}


def write_bundle(path: Path, files: Mapping[str, Entry], *, version: str) -> None:
    """Write the script and the archive after it; *files* has an executable ``start``."""
    packed = gzip.compress(pack_layer(files), 6, mtime=0)
    digest = hashlib.sha256(packed).hexdigest()[:16]
    header = _HEADER.format(version=version, digest=digest, first=_HEADER.count("\n") + 1).encode()
    path.write_bytes(header + packed)
    path.chmod(0o755)


if __name__ == "__main__":
    sys.exit(main())
