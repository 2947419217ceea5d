"""Replay a recording of decisions (``alignup schedule --record``), so that a failure in a cluster becomes a test.

    def test_the_gang_is_released():
        assert replay("decisions-000001.jsonl").difference is None

A new scheduling state gets the recorded events at the recorded times, and the recorded answers to what it asks. No
cluster is needed.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from alignup.align.errors import ParseError
from alignup.documents.codec import convert, load
from alignup.documents.recorded_values import FORMAT, FORMAT_VERSION, ValueReader, ValueWriter
from alignup.placement.cluster import Cluster
from alignup.placement.scheduling.facts import ClusterFacts
from alignup.placement.scheduling.instructions import Instruction, Report
from alignup.placement.scheduling.scheduling_state import SchedulingState

_MAX_TEXT = 2_000  #: characters of an event or instruction in a message


@dataclass(frozen=True, slots=True)
class Difference:
    """The first event to which the state answers otherwise than recorded."""

    line: int
    event: str
    expected: str  #: an instruction, or ``nothing``
    got: str  #: an instruction, ``nothing``, or a question that the recording does not answer

    def __str__(self) -> str:
        return f"line {self.line}: after {self.event}\nexpected {self.expected}\ngot      {self.got}"


@dataclass(frozen=True, slots=True)
class Replay:
    events: int  #: that were replayed
    difference: Difference | None
    warning: str = ""  #: such as that the last line is damaged


def replay(path: Path | str, *, make_state: Callable[..., SchedulingState] = SchedulingState) -> Replay:
    """Replay a file up to the first difference.

    ``ParseError`` if it is not a recording, is one of another format, or is damaged before its last line.
    """
    lines = _Lines(Path(path))
    header, reader, facts = lines.header(), ValueReader(), _RecordedAnswers()
    state = make_state(Cluster(max_unconfirmed=header["maxUnconfirmed"]), cast("ClusterFacts", facts))
    events = 0
    for number, line in lines:
        recorded_values = {name: reader.read(value) for name, value in line.items()}
        if "snapshot" in recorded_values:
            if problem := _problem(state.handle(recorded_values["snapshot"], now=float("-inf"))):
                raise ParseError(f"{path}:{number}: cannot begin with the snapshot: {problem}")
            continue
        events += 1
        facts.answer(recorded_values.get("facts", ()))
        instructions = state.handle(recorded_values["event"], now=recorded_values["now"])
        difference = facts.unanswered or _first_difference(recorded_values["instructions"], instructions)
        if difference:
            return Replay(events, Difference(number, _show(recorded_values["event"]), *difference), lines.warning)
    return Replay(events, None, lines.warning)


class _Lines:
    """The lines of a file with their numbers; *warning* says at the end whether the last one is damaged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = path.read_bytes().splitlines(keepends=True)
        self.warning = ""

    def header(self) -> Mapping[str, Any]:
        try:
            header = load(self._lines[0])
        except (ParseError, IndexError):
            header = None
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise ParseError(f"{self._path} is not a recording of decisions")
        if header.get("version") != FORMAT_VERSION:
            versions = f"format version {header.get('version')}, and this alignup reads version {FORMAT_VERSION}"
            raise ParseError(f"{self._path} has {versions}; it is of alignup {header.get('alignup')}")
        return header

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, text in enumerate(self._lines[1:], 2):
            try:
                line: dict[str, Any] = convert(load(text.removesuffix(b"\n") if text.endswith(b"\n") else b""), dict)
            except ParseError as error:
                if number < len(self._lines):
                    raise ParseError(f"{self._path}:{number}: {error}") from None
                self.warning = f"{self._path}:{number}: the last line is damaged, as after a killed process: {error}"
                return
            yield number, line


class _RecordedAnswers:
    """Answers the questions of the state as they were answered."""

    def __init__(self) -> None:
        self._writer = ValueWriter(alone=True)
        self._answers: dict[bytes, Any] = {}
        self._later: dict[tuple[bytes, int], Any] = {}  #: by how often a question was asked before in this event
        self._asked: Counter[bytes] = Counter()
        self.unanswered: tuple[str, str] | None = None  #: what is expected, and the question

    def answer(self, answers: tuple[Any, ...]) -> None:
        """Note the answers of the next event."""
        self._asked.clear()
        self._later.clear()
        for name, args, kwargs, answer, *earlier_calls in answers:
            key = self._key(name, args, kwargs)
            if earlier_calls:
                self._later[key, earlier_calls[0]] = answer
            else:
                self._answers[key] = answer

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a method or property of the facts
        if isinstance(vars(ClusterFacts).get(name), property):
            return self._ask(name)
        return lambda *args, **kwargs: self._ask(name, *args, **kwargs)

    def _key(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        hashable_args = [tuple(arg) if isinstance(arg, list) else arg for arg in args]
        hashable_kwargs = {key: tuple(arg) if isinstance(arg, list) else arg for key, arg in kwargs.items()}
        return self._writer.line((name, tuple(hashable_args), hashable_kwargs))

    def _ask(self, name: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        key = self._key(name, args, kwargs)
        if (key, self._asked[key]) in self._later:
            self._answers[key] = self._later[key, self._asked[key]]
        self._asked[key] += 1
        if key not in self._answers:
            question = f"{name}({', '.join([*map(_show, args), *(f'{k}={_show(v)}' for k, v in kwargs.items())])})"
            self.unanswered = ("a question that was asked", f"the question {question}, which the recording lacks")
            raise LookupError(question)
        answer = self._answers[key]
        if isinstance(answer, Exception):
            raise answer
        return answer


def _first_difference(expected_instructions: tuple[Any, ...], actual: list[Instruction]) -> tuple[str, str] | None:
    writer = ValueWriter(alone=True)
    for index in range(max(len(expected_instructions), len(actual))):
        instructions = [todo[index : index + 1] for todo in (expected_instructions, tuple(actual))]
        if writer.line(instructions[0]) != writer.line(instructions[1]):
            expected_text, actual_text = (_show(todo[0]) if todo else "nothing" for todo in instructions)
            return expected_text, actual_text
    return None


def _problem(instructions: list[Instruction]) -> str:
    reports = [instruction for instruction in instructions if isinstance(instruction, Report)]
    return "; ".join(str(report.details["error"]) for report in reports if report.event == "step failed")


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
