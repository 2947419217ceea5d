"""structlog, imported as if rich were not installed.

structlog imports rich for tracebacks, which the log of the agent does not contain. That takes memory and time.
"""

import sys


def import_structlog() -> None:
    """Import structlog without rich, before another module imports it."""
    if "rich" in sys.modules:
        return  # the memory is taken already
    sys.modules["rich"] = None  # type: ignore[assignment] # import rich: ModuleNotFoundError
    try:
        import structlog  # noqa: F401, PLC0415
    finally:
        del sys.modules["rich"]
