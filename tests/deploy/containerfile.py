"""Reads a Containerfile."""

import shlex
from dataclasses import dataclass, field
from pathlib import Path

from tests.console_runner import ROOT

CONTAINERFILE = ROOT / "Containerfile"

Instruction = tuple[str, str]  #: in upper case, and its arguments


@dataclass(frozen=True, slots=True)
class Stage:
    image: str  #: that it begins with
    name: str = ""
    instructions: list[Instruction] = field(default_factory=list)

    def of(self, instruction: str) -> list[str]:
        return [arguments for name, arguments in self.instructions if name == instruction]


def read_containerfile(path: Path = CONTAINERFILE) -> tuple[dict[str, str], list[Stage]]:
    """Return the arguments before the first stage, and the stages."""
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    lines = [line for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", "").splitlines():
        instruction, _, rest = line.strip().partition(" ")
        if instruction == "ARG" and not stages:
            name, _, value = rest.partition("=")
            arguments[name] = value
        elif instruction == "FROM":
            image, *named = shlex.split(rest)
            stages.append(Stage(image, named[1] if named else ""))
        elif instruction:
            stages[-1].instructions.append((instruction, rest))
    return arguments, stages
