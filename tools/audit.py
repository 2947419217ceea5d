"""Compares the locked libraries with a database of advisories: ``make audit ADVISORIES=DIR``.

The database is a directory of advisories in the OSV format, such as an unpacked copy of the PyPI export of osv.dev or
of the Python Packaging Advisory Database in JSON. Nothing is downloaded.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from tools.lock import locked_versions

_ADVICE = """no advisory database: give its directory, make audit ADVISORIES=DIR
It has advisories in the OSV format as *.json files, such as https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip.
With access to the network, 'uvx pip-audit --requirement lock/runtime.txt' does the same."""


def affected(versions: Mapping[str, str], advisories: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Return a line for each library that an advisory is about."""
    known = {canonicalize_name(name): version for name, version in versions.items()}
    for advisory in advisories:
        if "withdrawn" in advisory:
            continue
        for one in advisory.get("affected", ()):
            package = one.get("package", {})
            version = known.get(canonicalize_name(str(package.get("name", ""))))
            if package.get("ecosystem") == "PyPI" and version and _includes(one, version):
                text = advisory.get("summary") or str(advisory.get("details", "")).partition("\n")[0]
                yield f"{package['name']} {version}: {advisory['id']}: {text}"


def _includes(one: Mapping[str, Any], version: str) -> bool:
    if version in one.get("versions", ()):
        return True
    ranges = (found for found in one.get("ranges", ()) if found.get("type") == "ECOSYSTEM")
    return any(_in_range(found["events"], Version(version)) for found in ranges)


def _in_range(events: Iterable[Mapping[str, str]], version: Version) -> bool:
    """Whether the last event at or before *version* begins a range."""
    inside = False
    for event in sorted(events, key=_event_version):
        (kind,) = event
        at = _event_version(event)
        if at > version or (kind == "last_affected" and at >= version):
            break
        inside = kind == "introduced"
    return inside


def _event_version(event: Mapping[str, str]) -> Version:
    (text,) = event.values()
    try:
        return Version(text)
    except InvalidVersion:
        return Version("0")


def main() -> int:
    if len(sys.argv) < 2 or not Path(sys.argv[1]).is_dir():
        print(_ADVICE, file=sys.stderr)
        return 2
    paths = sorted(Path(sys.argv[1]).rglob("*.json"))
    found = list(affected(locked_versions(), (json.loads(path.read_text("utf-8")) for path in paths)))
    print(*found, f"{len(found)} of {len(paths)} advisories are about locked libraries", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
