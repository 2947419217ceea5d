"""Which Alignup this is, and where to get it with all its parts. No other module names a package index."""

import json
from importlib.resources import files

from alignup import __version__
from alignup.cli.app import FailureError

#: Extra → the modules of its libraries.
EXTRAS = {
    "agent": ("google", "grpc", "h11", "httptools", "jinja2", "prometheus_client", "starlette", "structlog"),
    "cluster": ("aiohttp", "cryptography", "structlog", "xxhash", "yarl"),
    "claims": ("cel_expr_python",),
    "fleet": ("dask", "distributed"),
    "gpu": ("pynvml",),
}
#: Command → the extras that it needs.
NEEDED_EXTRAS = {
    "agent": ("agent",),
    "cluster": ("cluster",),
    "collect": ("cluster",),
    "nri": ("agent",),
    "observe": ("agent", "cluster"),
    "schedule": ("agent", "cluster"),
    "webhook-certificates": ("cluster",),
}


class MissingLibraryError(FailureError):
    def __init__(self, error: ImportError, *extras: str) -> None:
        super().__init__(f"{error.name} is not installed", advice=install_advice(*extras))


def describe_import_error(error: ImportError, command: str) -> Exception:
    """Return an error that names the extras that *command* needs; *error* itself if no extra has the module."""
    module = (error.name or "").partition(".")[0]
    extras = [extra for extra, modules in EXTRAS.items() if module in modules]
    needed_extras = NEEDED_EXTRAS.get(command, ())
    return (
        MissingLibraryError(error, *(needed_extras if set(needed_extras) & set(extras) else extras))
        if extras
        else error
    )


def install_advice(*extras: str) -> str:
    """Say how to install Alignup with *extras*.

    Alignup is in no package index yet; once it is, ``alignup[…]`` is enough.
    """
    names, wheel = ",".join(extras), f"alignup-{__version__}-py3-none-any.whl"
    return f"Run pip install '.[{names}]' in a clone of the repository, or pip install '{wheel}[{names}]' with a wheel."


def version_text() -> str:
    """Return the version, and the commit if the package was built from git."""
    build = files("alignup") / "build.json"  # written by hatch_build.py
    if not build.is_file():
        return f"alignup {__version__}"
    document = json.loads(build.read_text("utf-8"))
    note = ", with changes" if document["changed"] else ""
    return f"alignup {__version__} (commit {document['commit'][:12]}{note})"
