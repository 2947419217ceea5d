"""Reads lock files."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
RUNTIME = ROOT / "lock" / "runtime.txt"


def locked_versions(path: Path = RUNTIME) -> dict[str, str]:
    """Return the version of each library for this interpreter on Linux; those for other platforms are left out."""
    lines = re.findall(r"^([\w.-]+)==([\w.+]+)(?: ; (.*?))?(?: \\)?$", path.read_text("utf-8"), re.MULTILINE)
    return {name: version for name, version, marker in lines if "sys_platform == 'emscripten'" not in marker}
