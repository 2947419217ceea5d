"""One turn of the state machine: the time of the event, and the instructions so far."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from alignup.placement.scheduling.instructions import Instruction, Report


def run_all(*steps: Callable[[], object]) -> None:
    """Run every step, even if other steps raise; then raise the error, so that an event or change is handled again."""
    errors: list[Exception] = []
    for step in steps:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - it is raised below
            errors.append(error)
    if errors:
        raise errors[0] if len(errors) == 1 else ExceptionGroup("several steps failed", errors)


@dataclass(frozen=True, slots=True)
class IsolatedStep:
    """The context of one step; a class of its own, so that type checkers know that it ends exceptions."""

    _failed: Callable[[str, Exception], object]
    _action: str

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._failed(self._action, error)
        return True


@dataclass(slots=True)
class Turn:
    now: float = float("-inf")
    instructions: list[Instruction] = field(default_factory=list)

    def begin(self, now: float) -> None:
        self.now = now
        self.instructions = []

    def emit(self, *instructions: Instruction) -> None:
        self.instructions.extend(instructions)

    def failed(self, step: str, name: str, error: Exception, retry: float = 0.0) -> None:
        """Report a step about one pod, gang or node that has failed, and is tried again after *retry* seconds."""
        details = {"step": step, "name": name, "error": error, "retry": retry}
        self.emit(Report("step failed", details=details))

    @contextmanager
    def isolated(self, step: str, name: str) -> Iterator[None]:
        """Let a step fail alone."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, all others go on
            self.failed(step, name, error)
