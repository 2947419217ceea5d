"""One line a decision, to whoever reads the agent's output: for people on a terminal, as JSON elsewhere."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor

from alignup.agent.state import AgentEvent, EventKind
from alignup.align.decision import Decision
from alignup.align.explain import sentences


def make_logger(stream: TextIO | None = None, *, readable: bool | None = None) -> FilteringBoundLogger:
    """A log to *stream*; *readable* for people, which is what it is on a terminal unless said otherwise."""
    out = sys.stderr if stream is None else stream
    on_terminal = out.isatty()
    readable = on_terminal if readable is None else readable
    renderer: Processor = structlog.dev.ConsoleRenderer(colors=on_terminal, pad_event_to=10, sort_keys=False)
    if not readable:
        renderer = structlog.processors.JSONRenderer(ensure_ascii=False)
    made: FilteringBoundLogger = structlog.wrap_logger(
        _Writer(out),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S" if readable else "iso", utc=not readable),
            _in_order,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger("info"),
    )
    return made


class _Writer:
    """Writes lines. Where that cannot be, as the disk is full or nobody reads any more, the work goes on without."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def msg(self, line: str) -> None:
        """One line, whole or not at all."""
        with suppress(OSError, ValueError):
            self._out.write(f"{line}\n")
            self._out.flush()

    info = warning = error = msg


def _in_order(_logger: object, _method: str, facts: EventDict) -> EventDict:
    """When and what first, as people read."""
    return {name: facts.pop(name) for name in ("timestamp", "level", "event")} | dict(facts)


@contextmanager
def relay_logging(log: FilteringBoundLogger) -> Iterator[None]:
    """What libraries have to say goes into *log* too, as long as this lasts."""
    relay = _Relay(log)
    logging.getLogger().addHandler(relay)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(relay)


class _Relay(logging.Handler):
    """Passes warnings and errors of Python's own logging on."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """One line a record."""
        say = self._log.error if record.levelno >= logging.ERROR else self._log.warning
        say(record.name, detail=record.getMessage())


def log_event(log: FilteringBoundLogger, happening: AgentEvent) -> None:
    """One line about what happened."""
    say = log.warning if happening.kind is EventKind.REJECTED else log.info
    say(str(happening.kind), **_facts(happening))


def _facts(happening: AgentEvent) -> dict[str, Any]:
    """What is worth a reader's time, in a fixed order."""
    facts: dict[str, Any] = {}
    if happening.detail:
        facts["detail"] = happening.detail
    if happening.pod is not None:
        facts |= {"pod": f"{happening.pod.namespace}/{happening.pod.name}", "uid": happening.pod.uid}
        facts["source"] = happening.source
    if happening.decision is not None:
        facts |= _verdict(happening.decision)
        facts["ms"] = round(happening.seconds * 1000, 2)
    return facts


def _verdict(decision: Decision) -> dict[str, Any]:
    if decision.rejection is not None:
        return {
            "policy": str(decision.policy),
            "reason": decision.rejection.reason,
            "message": decision.rejection.message,
        }
    placed = [f"{one.container} on {one.hint}: {sentences.describe_allocation(one)}" for one in decision.placements]
    return {"policy": str(decision.policy), "placed": "; ".join(placed)}
