"""The section of a version in CHANGELOG.md, as notes of its release: ``python -m tools.release_notes 0.2.0``."""

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"


def release_notes(version: str, changelog: str) -> str:
    """Return the text between the heading of *version* and the next one; ``ValueError`` if there is none."""
    section = re.search(rf"^## \[{re.escape(version)}\].*?\n(.*?)(?=^## \[|\Z)", changelog, re.MULTILINE | re.DOTALL)
    if section is None or not section[1].strip():
        raise ValueError(f"CHANGELOG.md has no section for {version}")
    return section[1].strip() + "\n"


def main() -> int:
    try:
        (version,) = sys.argv[1:]
        print(release_notes(version, CHANGELOG.read_text("utf-8")), end="")
    except ValueError as error:
        print(f"release notes: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
