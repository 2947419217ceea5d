"""Writes what Alignup is made of: a bill of materials (CycloneDX) and a list of licences. ``make sbom``.

Versions are those of lock/runtime.txt, licences those that the installed libraries state. The Debian packages of the
container image are described inside it, in ``/var/lib/dpkg/status.d``.
"""

import json
import sys
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from alignup import __version__
from tools.lock import ROOT, locked_versions
from tools.wheels import source_date


def licence_of(name: str) -> str:
    """Return the licence that an installed library states: an SPDX expression if it has one."""
    try:
        stated = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return "unknown"
    classifiers = [
        one.rpartition(" :: ")[2] for one in stated.get_all("Classifier", []) if one.startswith("License ::")
    ]
    named = str(stated["License"] or "").strip().partition("\n")[0]
    return str(stated["License-Expression"] or "") or named or ", ".join(classifiers) or "unknown"


def bill_of_materials(versions: Mapping[str, str], *, date: datetime) -> dict[str, Any]:
    """Return a CycloneDX document; the same input gives the same document."""
    own = f"pkg:pypi/alignup@{__version__}"
    components = [_component(name, version) for name, version in sorted(versions.items())]
    known = json.dumps([own, components], sort_keys=True)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, known)}",
        "version": 1,
        "metadata": {
            "timestamp": date.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": "alignup",
                "version": __version__,
                "purl": own,
                "licenses": [{"expression": "Apache-2.0"}],
            },
        },
        "components": components,
        "dependencies": [{"ref": own, "dependsOn": [one["bom-ref"] for one in components]}],
    }


def _component(name: str, version: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{version}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "licenses": [{"license": {"name": licence_of(name)}}],
    }


def main() -> int:
    versions = locked_versions()
    date = datetime.fromtimestamp(source_date(ROOT), UTC)
    into = ROOT / "dist"
    into.mkdir(exist_ok=True)
    bill = into / f"alignup-{__version__}.cdx.json"
    bill.write_text(json.dumps(bill_of_materials(versions, date=date), indent=1) + "\n", "utf-8")
    width = max(map(len, versions))
    lines = [f"{name:{width}}  {version:10}  {licence_of(name)}" for name, version in sorted(versions.items())]
    licences = into / f"alignup-{__version__}.licences.txt"
    licences.write_text("\n".join(lines) + "\n", "utf-8")
    print(*lines, "", str(bill), str(licences), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
