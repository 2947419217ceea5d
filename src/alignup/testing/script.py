"""Scripts for test servers: one JSON object a line, each an action to run some seconds after the one before.

    {"after": 0, "do": "fault", "method": "Allocate", "delay": 2, "error": "out of order"}
    {"after": 0, "do": "fault", "method": "GetPreferredAllocation", "hang": true, "times": 1}
    {"after": 5, "do": "crash"}

``fault`` takes the fields of ``alignup.testing.Fault``, or of ``ApiFault`` for the API server; without any, the method
works again. ``crash`` kills the process as by ``kill -9``. Each server defines further actions.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from pathlib import Path
from types import UnionType
from typing import Any, Generic, TypeVar, get_type_hints

from alignup.align.errors import ListenError, ParseError

FieldType = type | UnionType
Arguments = Mapping[str, Any]  #: the fields of a step
Target = TypeVar("Target", bound=AbstractAsyncContextManager[Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFault:
    """How calls fail; the default is not at all."""

    delay: float = 0.0  #: seconds
    garbage: bool = False  #: the response does not decode
    hang: bool = False  #: there is no response
    done: bool = False  #: the request is carried out before the fault applies: only the response is lost
    times: int | None = None  #: number of calls; ``None``: all


AnyFault = TypeVar("AnyFault", bound=InjectedFault)


def take_fault(faults: dict[Any, AnyFault], *keys: Hashable) -> AnyFault | None:
    """Return the fault of one call, which is counted: the one under the first of *keys* that has any."""
    for key in keys:
        if (fault := faults.get(key)) is not None:
            if fault.times is not None:
                faults[key] = replace(fault, times=fault.times - 1)
                if fault.times <= 1:
                    del faults[key]
            return fault if fault.times != 0 else None
    return None


@dataclass(frozen=True, slots=True)
class Action(Generic[Target]):
    """What a step does: *run* gets the server and the step's fields, all of them checked."""

    run: Callable[[Target, Arguments], Awaitable[None] | None]
    required: Mapping[str, FieldType] = field(default_factory=dict)
    optional: Mapping[str, FieldType] = field(default_factory=dict)
    check: Callable[[Arguments], object] = lambda _: None  #: raises ``ValueError`` for values that would fail later


Actions = Mapping[str, Action[Target]]


def fault_action(
    kind: type[AnyFault],
    inject: Callable[..., None],
    *,
    required: Mapping[str, FieldType] | None = None,
    optional: Mapping[str, FieldType] | None = None,
) -> Action[Any]:
    """Return the action ``fault``: *inject* gets the server, a fault of *kind*, and the other fields by name."""
    fields = {name: int | float if hint is float else hint for name, hint in get_type_hints(kind).items()}

    def build(step: Arguments) -> AnyFault:
        return kind(**{name: value for name, value in step.items() if name in fields})

    def run(server: object, step: Arguments) -> None:
        inject(server, build(step), **{name: value for name, value in step.items() if name not in fields})

    return Action(run, required=required or {}, optional={**(optional or {}), **fields}, check=build)


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

    try:
        asyncio.run(run())
    except (ListenError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def parse(text: str, actions: Actions[Target]) -> tuple[ScriptStep[Target], ...]:
    """Return the steps of a script; ``ParseError`` names the line with an error."""
    all_actions: Actions[Any] = {"crash": Action(lambda _, __: os.kill(os.getpid(), signal.SIGKILL)), **actions}
    steps = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            if line.strip():
                steps.append(_step(json.loads(line), all_actions))
        except ValueError as error:
            raise ParseError(f"line {number} of the script: {error}") from error
    return tuple(steps)


async def play(steps: Iterable[ScriptStep[Target]], server: Target) -> None:
    for step in steps:
        await asyncio.sleep(step.after)
        coroutine = step.action.run(server, step.arguments)
        if isawaitable(coroutine):
            await coroutine


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
    if missing_fields := action.required.keys() - document.keys():
        raise ParseError(f"{do} needs {', '.join(sorted(missing_fields))}")
    action.check(document)
    return ScriptStep(float(after), do, action, document)
