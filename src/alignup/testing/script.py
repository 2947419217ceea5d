"""Scripts for test servers: one JSON object a line, each an action to run some seconds after the one before.

    {"after": 0, "do": "fault", "method": "Allocate", "delay": 2, "error": "out of order"}
    {"after": 0, "do": "fault", "method": "GetPreferredAllocation", "hang": true, "times": 1}
    {"after": 5, "do": "crash"}

``fault`` takes the fields of ``alignup.testing.Fault``; without any, the method works again. ``crash`` kills the
process as by ``kill -9``. ``alignup.testing.plugin`` defines further actions.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from inspect import isawaitable
from pathlib import Path
from types import UnionType
from typing import Any, Generic, TypeVar, get_type_hints

from alignup.align.errors import ListenError, ParseError
from alignup.testing.recording_server import Fault

FieldType = type | UnionType
Arguments = Mapping[str, Any]  #: the fields of a step
Target = TypeVar("Target", bound=AbstractAsyncContextManager[Any])


@dataclass(frozen=True, slots=True)
class Action(Generic[Target]):
    """What a step does: *run* gets the server and the step's fields, all of them checked."""

    run: Callable[[Target, Arguments], Awaitable[None] | None]
    required: Mapping[str, FieldType] = field(default_factory=dict)
    optional: Mapping[str, FieldType] = field(default_factory=dict)
    check: Callable[[Arguments], object] = lambda _: None  #: raises ``ValueError`` for values that would fail later


Actions = Mapping[str, Action[Target]]


@dataclass(frozen=True, slots=True)
class ScriptStep(Generic[Target]):
    after: float  #: seconds
    do: str
    action: Action[Target]
    arguments: Arguments


def main(
    make_server: Callable[[], Target],
    actions: Actions[Target],
    *,
    file: Path | None,
    report: Callable[[Target], Coroutine[Any, Any, None]],
) -> int:
    """Run a server until SIGTERM or SIGINT, play the script in *file*, and return an exit code.

    *report* runs beside the script and prints what the server does.
    """
    try:
        server = make_server()
        steps = parse(file.read_text(), actions) if file else ()
    except (ListenError, ParseError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2

    async def run() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with server, asyncio.TaskGroup() as group:
            tasks = [group.create_task(job) for job in (report(server), play(steps, server))]
            await stop.wait()
            for task in tasks:
                task.cancel()

    asyncio.run(run())
    return 0


def parse(text: str, actions: Actions[Target]) -> tuple[ScriptStep[Target], ...]:
    """Return the steps of a script; ``ParseError`` names the line with an error."""
    steps = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            if line.strip():
                steps.append(_step(json.loads(line), {**_COMMON, **actions}))
        except ValueError as error:
            raise ParseError(f"line {number} of the script: {error}") from error
    return tuple(steps)


async def play(steps: Iterable[ScriptStep[Target]], server: Target) -> None:
    for step in steps:
        await asyncio.sleep(step.after)
        running = step.action.run(server, step.arguments)
        if isawaitable(running):
            await running


def _step(document: object, actions: Actions[Target]) -> ScriptStep[Target]:
    if not isinstance(document, dict):
        raise ParseError("a step must be an object")
    after, do = document.pop("after", 0), document.pop("do", None)
    if do not in actions:
        raise ParseError(f"unknown action {do}; use one of {', '.join(actions)}")
    if not isinstance(after, int | float) or after < 0:
        raise ParseError(f"after must be a number of seconds, not {after}")
    action = actions[do]
    types = {**action.required, **action.optional}
    for name, value in document.items():
        if name not in types:
            raise ParseError(f"{do} has no field {name}; it takes {', '.join(types) or 'none'}")
        if not isinstance(value, types[name]):
            raise ParseError(f"{do} has an invalid {name}: {value}")
    if missing := action.required.keys() - document.keys():
        raise ParseError(f"{do} needs {', '.join(sorted(missing))}")
    action.check(document)
    return ScriptStep(float(after), do, action, document)


def _fault(arguments: Arguments) -> Fault:
    return Fault(**{name: value for name, value in arguments.items() if name != "method"})


_COMMON: Mapping[str, Action[Any]] = {
    "fault": Action(
        lambda server, step: server.inject(step["method"], _fault(step)),
        required={"method": str},
        optional={name: int | float if type_ is float else type_ for name, type_ in get_type_hints(Fault).items()},
        check=_fault,
    ),
    "crash": Action(lambda _, __: os.kill(os.getpid(), signal.SIGKILL)),
}
