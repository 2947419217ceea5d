"""Which Alignup this is, and where to get it with all its parts. No other module names a package index."""

import json
from importlib.resources import files

from alignup import __version__
from alignup.cli.app import FailureError

#: What pip installs. Alignup is in no package index yet; once it is, this is ``alignup``.
PACKAGE = "."
#: Where pip finds it, for people.
WHERE = "in a clone of the repository"


class MissingLibraryError(FailureError):
    def __init__(self, error: ImportError, *extras: str) -> None:
        super().__init__(f"{error.name} is not installed", advice=install_advice(*extras))


def install_advice(*extras: str) -> str:
    """Say how to install Alignup with *extras*."""
    return f"Run {WHERE}: pip install '{PACKAGE}[{','.join(extras)}]' (its README lists other ways)"


def version_text() -> str:
    """Return the version, and the commit if the package was built from git."""
    build = files("alignup") / "build.json"  # written by hatch_build.py
    if not build.is_file():
        return f"alignup {__version__}"
    document = json.loads(build.read_text("utf-8"))
    changed = ", with changes" if document["changed"] else ""
    return f"alignup {__version__} (commit {document['commit'][:12]}{changed})"
