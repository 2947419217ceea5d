"""The manifest of the kubectl plugin for krew, and the archives that it names: ``make krew``.

Krew downloads an archive for its platform, checks its digest, and links the program in it as ``kubectl-alignup``. Each
archive has a bundle of ``make bundle`` and the license.
"""

import argparse
import gzip
import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tools.oci import Entry, pack_layer

ROOT = Path(__file__).parents[1]
TEMPLATE = ROOT / "deploy" / "krew" / "alignup.yaml"
PROGRAM = "kubectl-alignup"

_BUNDLE = re.compile(r"alignup-(?P<version>\d+\.\d+\.\d+)(?P<pre>[\w.]*)-(?P<os>[a-z]+)-(?P<arch>\w+)")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make krew", description="Write a manifest for krew, and its archives.")
    parser.add_argument("--url", required=True, help="where the archives will be, such as https://…/releases/v0.1.0")
    parser.add_argument("--homepage", help="of the plugin (default: --url)")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where the bundles are (default: dist)")
    options = parser.parse_args(arguments)
    bundles = sorted(path for path in options.dist.glob("alignup-*") if _BUNDLE.fullmatch(path.name))
    if not bundles:
        parser.error(f"{options.dist} has no bundle; run make bundle first")
    output = options.dist / TEMPLATE.name
    manifest = make_manifest(bundles, url=options.url.rstrip("/"), homepage=options.homepage or options.url)
    output.write_text(yaml.safe_dump(manifest, sort_keys=False, width=120), "utf-8")
    print(output)
    return 0


def make_manifest(bundles: Sequence[Path], *, url: str, homepage: str) -> dict[str, Any]:
    """Write an archive beside each of *bundles*; return the manifest. ``ValueError`` if their versions differ."""
    platforms, versions = [], set()
    for bundle in bundles:
        match = _BUNDLE.fullmatch(bundle.name)
        if match is None:
            raise ValueError(f"{bundle} is not a bundle")
        pre = match["pre"].lstrip(".")
        versions.add(f"v{match['version']}-{pre}" if pre else f"v{match['version']}")
        platforms.append(_platform(bundle, match, url))
    if len(versions) != 1:
        raise ValueError(f"bundles of several versions: {', '.join(sorted(versions))}")
    manifest: dict[str, Any] = yaml.safe_load(TEMPLATE.read_text("utf-8"))
    manifest["spec"] = {"version": versions.pop(), "homepage": homepage, **manifest["spec"], "platforms": platforms}
    return manifest


def _platform(bundle: Path, match: re.Match[str], url: str) -> Mapping[str, Any]:
    files = {PROGRAM: Entry(0o755, bundle.read_bytes()), "LICENSE": Entry(content=(ROOT / "LICENSE").read_bytes())}
    packed = gzip.compress(pack_layer(files), 6, mtime=0)
    archive = bundle.with_name(f"{PROGRAM}{bundle.name.removeprefix('alignup')}.tar.gz")
    archive.write_bytes(packed)
    return {
        "selector": {"matchLabels": {"os": match["os"], "arch": match["arch"]}},
        "uri": f"{url}/{archive.name}",
        "sha256": hashlib.sha256(packed).hexdigest(),
        "files": [{"from": name, "to": "."} for name in sorted(files, reverse=True)],
        "bin": PROGRAM,
    }


if __name__ == "__main__":
    sys.exit(main())
