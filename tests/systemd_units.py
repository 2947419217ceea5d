"""A reader for systemd units, as far as ours need it."""

import re
from pathlib import Path


def lines(unit: Path, section: str = "Service") -> list[tuple[str, str]]:
    """Return name and value of each line of a section, with continued lines joined."""
    text = re.sub(r"\\\n\s*", " ", unit.read_text("utf-8"))
    _, heading, rest = text.partition(f"[{section}]\n")
    assert heading, f"{unit.name} has no section {section}"
    body = re.split(r"^\[", rest, maxsplit=1, flags=re.MULTILINE)[0].splitlines()
    pairs = (line.partition("=") for line in body if line and not line.startswith("#"))
    return [(name, value) for name, _, value in pairs]


def settings(unit: Path, section: str = "Service") -> dict[str, str]:
    """Return the lines of a section by name; the last of a repeated name wins."""
    return dict(lines(unit, section))
