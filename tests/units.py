"""Reading systemd's units, as far as ours go."""

import re
from pathlib import Path


def lines(unit: Path, section: str = "Service") -> list[tuple[str, str]]:
    """What a section of a unit says, name and value of each; lines that go on are put together."""
    text = re.sub(r"\\\n\s*", " ", unit.read_text("utf-8"))
    _, found, rest = text.partition(f"[{section}]\n")
    assert found, f"{unit.name} has no section {section}"
    own = re.split(r"^\[", rest, maxsplit=1, flags=re.MULTILINE)[0].splitlines()
    pairs = (line.partition("=") for line in own if line and not line.startswith("#"))
    return [(name, value) for name, _, value in pairs]


def settings(unit: Path, section: str = "Service") -> dict[str, str]:
    """The same by name; one that comes twice counts as it does last."""
    return dict(lines(unit, section))
