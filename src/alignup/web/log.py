"""The log on stderr: one line per event, for people on a terminal, as JSON elsewhere."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor

from alignup.agent.state import AgentEvent, EventKind
from alignup.align.explain import sentences
from alignup.web.log_queue import LogQueue


class LogStream(Protocol):
    def isatty(self) -> bool: ...
    def write(self, text: str, /) -> object: ...
    def flush(self) -> None: ...


@contextmanager
def queued_stderr() -> Iterator[tuple[FilteringBoundLogger, LogQueue]]:
    """Yield a logger to standard error that never blocks, and its queue."""
    queue = LogQueue(sys.stderr.fileno())
    log = make_logger(queue)
    queue.report = lambda count: log.warning("log", detail=f"{count} lines were dropped because the log was not read")
    try:
        yield log, queue
    finally:
        queue.close()


def make_logger(out: LogStream, *, readable: bool | None = None) -> FilteringBoundLogger:
    """Return a logger; *readable*: for people (default: if *out* is a terminal)."""
    on_terminal = out.isatty()
    renderer: Processor = structlog.processors.JSONRenderer(serializer=_to_json)
    if readable := on_terminal if readable is None else readable:
        renderer = structlog.dev.ConsoleRenderer(colors=on_terminal, pad_event_to=10, sort_keys=False)
    logger: FilteringBoundLogger = structlog.wrap_logger(
        _Writer(out),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S" if readable else "iso", utc=not readable),
            _time_first,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger("info"),
    )
    return logger


#: ``json.dumps`` would create an encoder for every line.
_ENCODER = json.JSONEncoder(ensure_ascii=False, default=repr)


def _to_json(fields: EventDict, **_options: object) -> str:
    return _ENCODER.encode(fields)


class _Writer:
    """Ignores write errors: a full disk or a closed pipe must not stop the agent."""

    def __init__(self, out: LogStream) -> None:
        self._out = out

    def msg(self, line: str) -> None:
        with suppress(OSError, ValueError):
            self._out.write(f"{line}\n")
            self._out.flush()

    info = warning = error = msg


def _time_first(_logger: object, _method: str, fields: EventDict) -> EventDict:
    return {name: fields.pop(name) for name in ("timestamp", "level", "event")} | dict(fields)


@contextmanager
def relay_logging(log: FilteringBoundLogger) -> Iterator[None]:
    relay = _Relay(log)
    logging.getLogger().addHandler(relay)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(relay)


class _Relay(logging.Handler):
    def __init__(self, log: FilteringBoundLogger) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        method = self._log.error if record.levelno >= logging.ERROR else self._log.warning
        method(record.name, detail=record.getMessage())


def log_event(log: FilteringBoundLogger, event: AgentEvent) -> None:
    fields: dict[str, Any] = {"detail": event.detail} if event.detail else {}
    if event.pod is not None:
        fields |= {"pod": f"{event.pod.namespace}/{event.pod.name}", "uid": event.pod.uid, "source": event.source}
    if event.decision is not None:
        fields["policy"] = str(event.decision.policy)
        if event.decision.rejection is not None:
            fields |= {"reason": event.decision.rejection.reason, "message": event.decision.rejection.message}
        else:
            placements = event.decision.placements
            placed = (f"{one.container} on {one.hint}: {sentences.describe_allocation(one)}" for one in placements)
            fields["placed"] = "; ".join(placed)
        fields["ms"] = round(event.seconds * 1000, 2)
    method = log.warning if event.kind is EventKind.REJECTED else log.info
    method(str(event.kind), **fields)
