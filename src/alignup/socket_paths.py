"""The limit on the path of a Unix socket: in one place, and in the same words everywhere."""

import os
from pathlib import Path

_MAX_PATH = 107  #: bytes; the kernel's limit, without the final NUL


def length_problem(path: Path, *, bound_path: Path | None = None) -> str:
    """Return why no socket can be at *path*, and what to do; empty if it is short enough.

    A socket that is bound at *bound_path* first, and moved then, needs two paths that are short enough.
    """
    excess = max(len(os.fsencode(location.absolute())) for location in (path, bound_path or path)) - _MAX_PATH
    if excess <= 0:
        return ""
    unit = "byte" if excess == 1 else "bytes"
    return f"the path is {excess} {unit} too long for a socket, which allows {_MAX_PATH}; choose a shorter one"
