"""The line numbers of fields in YAML and JSON texts, for messages about files that people write."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

MAX_TEXT = 4 << 20  #: characters of a text that is searched

_STEP = re.compile(r"\.?([^.\[\]]+)|\[([^]]*)\]")


def find_line(text: str | bytes, field: str, *, document: int = 1) -> int:
    """Return the line of *field*, a path such as ``nodes[1].memory`` or ``limits[cpu]``, in a document of *text*.

    Of a path that does not exist, the line of the innermost part that does; 0 if no part exists, or if the text cannot
    be read.
    """
    if len(text) > MAX_TEXT:
        return 0
    steps = [name or index for name, index in _STEP.findall(field)]
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader if PyYAML has it
    try:
        events = iter(loader(text).get_event, None)
        starts = (event for event in events if type(event) is yaml.DocumentStartEvent)
        for _ in range(document):
            next(starts)
        return _search(events, steps)
    except (yaml.YAMLError, StopIteration, UnicodeDecodeError):
        return 0


def _search(events: Iterator[Any], steps: list[str]) -> int:
    event = next(events)
    line = 0 if steps else _line(event)
    for step in steps:
        inner = None
        if type(event) is yaml.MappingStartEvent:
            inner = _find_key(events, step)
        elif type(event) is yaml.SequenceStartEvent and step.isdecimal():
            inner = _find_item(events, int(step))
        if inner is None:
            return line
        line, event = inner
    return line


def _find_key(events: Iterator[Any], key: str) -> tuple[int, Any] | None:
    """Return the line of *key* in the mapping that has begun, and the first event of its value."""
    while type(event := next(events)) is not yaml.MappingEndEvent:
        value = next(events) if type(event) is yaml.ScalarEvent else None
        if value is not None and event.value == key:
            return _line(event), value
        _skip(events, event)
        _skip(events, next(events) if value is None else value)
    return None


def _find_item(events: Iterator[Any], index: int) -> tuple[int, Any] | None:
    while type(event := next(events)) is not yaml.SequenceEndEvent:
        if index == 0:
            return _line(event), event
        index -= 1
        _skip(events, event)
    return None


def _skip(events: Iterator[Any], event: Any) -> None:  # noqa: ANN401 - any event
    """Read to the end of the value that begins with *event*."""
    depth = 0
    while True:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth <= 0:
            return
        event = next(events)


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 0
