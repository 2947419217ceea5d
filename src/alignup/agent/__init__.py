"""The agent: pods are admitted on this host one at a time, and every decision is on disk before it is answered."""

import sys


def _import_structlog_without_rich() -> None:
    """Import structlog as if rich were not installed, in a process that has imported neither.

    structlog imports rich for tracebacks, which the log of the agent does not contain. That takes 8 MB.
    """
    if "rich" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment] # import rich: ModuleNotFoundError
    try:
        import structlog  # noqa: F401, PLC0415
    finally:
        del sys.modules["rich"]


_import_structlog_without_rich()
