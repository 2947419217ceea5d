"""Sets the version: ``python -m tools.version 0.2.0``.

``alignup.__version__`` is the version; manifests and the Helm chart name the image of that version.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = "src/alignup/__init__.py"

#: Files with copies of the version, and what is before them.
COPIES = {
    SOURCE: '__version__ = "',
    "deploy/helm/alignup/Chart.yaml": "appVersion: ",
    "deploy/kubernetes/observe/daemonset.yaml": "image: alignup:",
    "deploy/kubernetes/schedule/deployment.yaml": "image: alignup:",
    "deploy/kubernetes/scheduler/deployment.yaml": "image: alignup:",
}


def set_version(root: Path, version: str) -> None:
    for name, before in COPIES.items():
        path = root / name
        text, count = re.subn(rf"({re.escape(before)})[\w.+-]+", rf"\g<1>{version}", path.read_text("utf-8"))
        if count != 1:
            raise ValueError(f"{name}: {count} lines with {before!r}, not one")
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    set_version(ROOT, sys.argv[1])
