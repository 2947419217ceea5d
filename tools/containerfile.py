"""Reads a Containerfile."""

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CONTAINERFILE = Path(__file__).parents[1] / "Containerfile"

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


def image_config(stage: Stage, *, path: str) -> dict[str, Any]:
    """Return what a stage tells the container runtime, as the ``config`` of an image; *path* is the ``PATH`` before it.

    It knows the instructions LABEL, ENV, USER and ENTRYPOINT.
    """
    environment = _pairs(stage.of("ENV"))
    environment = {name: value.replace("$PATH", path) for name, value in environment.items()}
    return {
        "User": stage.of("USER")[-1],
        "Env": [f"{name}={value}" for name, value in environment.items()],
        "Entrypoint": json.loads(stage.of("ENTRYPOINT")[-1]),
        "Labels": _pairs(stage.of("LABEL")),
    }


def _pairs(lines: list[str]) -> dict[str, str]:
    """Return NAME=VALUE words as a mapping."""
    words = [word.partition("=") for line in lines for word in shlex.split(line)]
    return {name: value for name, _, value in words}
