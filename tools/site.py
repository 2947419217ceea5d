"""Prepares the source of the documentation site: ``make docs``.

The site has the layout of the repository, so that links between documents work in both. The reference is generated.
"""

import shutil
import sys
from pathlib import Path

from tools import reference

ROOT = Path(__file__).parents[1]
TOP = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "RELEASING.md", "LICENSE")


def write_source(into: Path) -> None:
    """Replace *into* by the source of the site."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    for name in TOP:
        shutil.copy(ROOT / name, into / name)
    shutil.copytree(ROOT / "docs", into / "docs")
    (into / "deploy").mkdir()
    shutil.copy(ROOT / "deploy" / "README.md", into / "deploy")
    shutil.copytree(ROOT / "examples", into / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    (into / "docs" / "reference").mkdir(exist_ok=True)
    for name, text in reference.pages().items():
        (into / "docs" / "reference" / name).write_text(text, "utf-8")


if __name__ == "__main__":
    write_source(Path(sys.argv[1]))
