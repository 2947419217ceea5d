"""One turn of the state machine: the time of the event, and the instructions so far."""

from dataclasses import dataclass, field

from alignup.placement.scheduling.instructions import Instruction


@dataclass(slots=True)
class Turn:
    now: float = float("-inf")
    instructions: list[Instruction] = field(default_factory=list)

    def begin(self, now: float) -> None:
        self.now, self.instructions = now, []

    def emit(self, *instructions: Instruction) -> None:
        self.instructions.extend(instructions)
