"""A recording of decisions: events, facts and instructions of the scheduling state as JSON lines, to be replayed.

    {"format": "alignup decisions", "version": 1, …}             the first line
    {"snapshot": …}                                              events that lead to the state in which the file begins
    {"now": 12.5, "event": …, "facts": […], "instructions": […]}

``facts`` are answers to questions of the state that the file does not have yet, or that have changed. The first file of
a process begins with an empty state. ``alignup.testing.replay`` reads the files, ``documents.recorded_values`` has the
form of values. Recorded files name pods and nodes.

Not recorded is what front ends do with the state between two events. Questions there can decide which of equally good
nodes comes first, and whether the rejection of a pod of others is counted. Options must not change after the start.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, KeysView, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, BinaryIO, cast

import structlog

from alignup import __version__
from alignup.documents.recorded_values import FORMAT, FORMAT_VERSION, NotRecordableError, ValueWriter
from alignup.placement.cluster import Cluster
from alignup.placement.scheduling.events import Event
from alignup.placement.scheduling.facts import ClusterFacts, PodFacts
from alignup.placement.scheduling.instructions import Instruction
from alignup.placement.scheduling.options import GateOptions
from alignup.placement.scheduling.scheduling_state import SchedulingState
from alignup.placement.scheduling.snapshot import take_snapshot
from alignup.placement.verdict import Verdict

MAX_TEXTS = 50_000  #: pods whose texts are kept to recognize questions
_MAX_TRIES = 16  #: to begin another file while steps are under way that no snapshot can contain
_IMMUTABLE = (frozenset, tuple, str, bool, PodFacts, Verdict)
_NAME = re.compile(r"decisions-(\d{6,})\.jsonl")

_log = structlog.get_logger()


class DecisionRecorder:
    """Writes files into a directory until one cannot be written; then *failed* is called, and nothing is recorded."""

    max_bytes = 16 << 20  #: of the events in a file, unless its snapshot is larger; its values are kept in memory
    max_files = 16

    def __init__(
        self,
        directory: Path,
        facts: ClusterFacts,
        *,
        max_unconfirmed: int | None = 1,
        on_failure: Callable[[], object] = lambda: None,
    ) -> None:
        self._directory = directory
        self._header = {"alignup": __version__, "maxUnconfirmed": max_unconfirmed}
        self._failed = on_failure
        self._file: BinaryIO | None = None
        self._left = 0  #: bytes that the file may still get
        self._tries = 0  #: to begin the next file that failed
        self.stopped = False
        self._writer = ValueWriter()
        self._questions = _Questions()
        self._answers: dict[Any, tuple[object, object]] = {}  #: to each question, the last one, and as it is written
        self._listening = False  #: whether an event is being handled; other questions change nothing
        self._new: list[Any] = []  #: answers that are not written yet
        self._asked: Counter[Any] = Counter()  #: how often in this event, for questions with several answers
        self.facts = cast("ClusterFacts", _RecordedFacts(facts, self._answered))

    def begin(self, state: "RecordedState") -> None:
        """Note that an event follows: begin a file if there is none, or if the last one is full."""
        if not self.stopped and (self._file is None or self._left <= 0):
            try:
                self._open(state)
            except Exception as error:  # noqa: BLE001 - whatever it is, the service goes on
                self._stop(error)
        self._listening = self._file is not None
        self._asked.clear()

    def write(self, now: float, event: Event, instructions: Sequence[Instruction]) -> None:
        """Write an event that was handled, and the instructions that follow from the event."""
        self._listening = False
        if self._file is None:
            return
        line: dict[str, Any] = {"now": now, "event": event}
        if self._new:
            line["facts"] = tuple(self._new)
        line["instructions"] = tuple(instructions)
        try:
            self._left -= self._put(line)
        except Exception as error:  # noqa: BLE001
            self._stop(error)
        self._new.clear()

    def close(self) -> None:
        """End the recording."""
        self.stopped = True
        self._close_file()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                _log.warning("cannot close a recording", problem=str(error))

    def _open(self, state: SchedulingState) -> None:
        snapshot = take_snapshot(state, SchedulingState(Cluster(), self.facts))
        try:
            ValueWriter().line(snapshot[-1])
        except NotRecordableError:
            self._tries += 1
            if self._file is None or self._tries > _MAX_TRIES:
                raise
            self._left = self.max_bytes // _MAX_TRIES  # go on with this file until the step is over
            return
        self._close_file()
        files = sorted(
            (int(name[1]), path) for path in self._directory.iterdir() if (name := _NAME.fullmatch(path.name))
        )
        for _, path in files[: max(len(files) + 1 - self.max_files, 0)]:
            path.unlink()
        number = files[-1][0] + 1 if files else 1
        path = self._directory / f"decisions-{number:06}.jsonl"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._file = os.fdopen(descriptor, "wb")
        self._writer = ValueWriter()
        self._answers.clear()
        self._put({"format": FORMAT, "version": FORMAT_VERSION, **self._header})
        state.cluster.forget_order()  # which the snapshot does not have
        size = sum(self._put({"snapshot": event}) for event in snapshot)
        self._left = max(self.max_bytes, size)  # snapshots must not take longer than events
        self._tries = 0
        _log.info("decisions are recorded", file=str(path))

    def _put(self, line: Mapping[str, Any]) -> int:
        text = self._writer.line(line)
        if self._file is not None:
            self._file.write(text)
            self._file.flush()
        return len(text)

    def _stop(self, error: Exception) -> None:
        _log.warning("decisions are not recorded any more", problem=f"{type(error).__name__}: {error}")
        self.close()
        self._writer = ValueWriter()
        self._questions = _Questions()
        self._answers.clear()
        self._failed()

    def _answered(self, question: tuple[Any, ...], answer: object) -> None:
        try:
            if self._listening:
                self._note(question, answer)
        except Exception as error:  # noqa: BLE001 - it must not become an error of the decision
            self._listening = False
            self._stop(error)

    def _note(self, question: tuple[Any, ...], answer: object) -> None:
        key = self._questions.key(question)
        number = self._asked[key]
        self._asked[key] += 1
        last, written_answer = self._answers.get(key, (self, None))
        if answer is last and isinstance(answer, _IMMUTABLE):
            return
        answer_copy = _copied(answer, question[0])
        self._answers[key] = (answer, answer_copy)
        if last is self or not _same(written_answer, answer_copy):
            self._new.append((*question, answer_copy, number) if number else (*question, answer_copy))


class RecordedState(SchedulingState):
    """A scheduling state whose turns are recorded."""

    def __init__(self, cluster: Cluster, recorder: DecisionRecorder, *, gate: GateOptions | None = None) -> None:
        super().__init__(cluster, recorder.facts, gate=gate)
        self._recorder = recorder

    def handle(self, event: Event, *, now: float) -> list[Instruction]:
        self._recorder.begin(self)
        instructions = super().handle(event, now=now)
        self._recorder.write(now, event, instructions)
        return instructions


class _RecordedFacts:
    """Facts whose answers are noted."""

    def __init__(self, facts: ClusterFacts, on_answer: Callable[[tuple[Any, ...], object], None]) -> None:
        self._facts = facts
        self._answered = on_answer
        for name, method in vars(ClusterFacts).items():
            if callable(method) and not name.startswith("_"):
                setattr(self, name, self._asking(name))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a property
        answer = getattr(self._facts, name)
        self._answered((name, (), {}), answer)
        return answer

    def _asking(self, name: str) -> Callable[..., Any]:
        def ask(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - of any method
            try:
                answer = getattr(self._facts, name)(*args, **kwargs)
            except Exception as error:
                self._answered((name, args, kwargs), error)
                raise
            self._answered((name, args, kwargs), answer)
            return answer

        return ask


class _Questions:
    """Keys of questions that are equal for equal questions; pods are compared by their texts."""

    def __init__(self) -> None:
        self._writer = ValueWriter(alone=True)
        self._texts: dict[int, tuple[object, bytes]] = {}

    def key(self, question: tuple[Any, ...]) -> tuple[Any, ...]:
        name, args, kwargs = question
        return (name, *map(self._part, args), *((key, self._part(value)) for key, value in kwargs.items()))

    def _part(self, value: object) -> object:
        if isinstance(value, str | bool | None):
            return value
        if isinstance(value, Sequence) and not hasattr(value, "_fields"):
            return tuple(map(self._part, value))
        entry = self._texts.get(id(value))
        if entry is None:
            if len(self._texts) >= MAX_TEXTS:
                self._texts.clear()
            entry = self._texts[id(value)] = (value, self._writer.line(value))
        return entry[1]


def _copied(answer: object, name: str) -> object:
    """Return an answer as it is now, in its present order: collections may change later."""
    if isinstance(answer, Mapping) and name == "excluded":
        return dict(answer)
    if isinstance(answer, AbstractSet | Mapping):
        return dict.fromkeys(answer).keys()
    return tuple(answer) if isinstance(answer, Collection) and not isinstance(answer, str | tuple) else answer


def _same(answer: object, other: object) -> bool:
    if isinstance(answer, Exception):
        return type(answer) is type(other) and str(answer) == str(other)
    if isinstance(answer, KeysView) and isinstance(other, KeysView):
        return list(answer) == list(other)
    return type(answer) is type(other) and answer == other
