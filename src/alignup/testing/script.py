"""Scripts for a plugin: a JSON object a line, each a thing to do, so many seconds after the one before.

    {"after": 1, "do": "health", "id": "gpu-0", "health": "Unhealthy"}
    {"after": 1, "do": "remove", "id": "gpu-1"}
    {"after": 1, "do": "devices", "devices": "2@0"}
    {"after": 0, "do": "fault", "method": "Allocate", "delay": 2, "error": "out of order"}
    {"after": 0, "do": "fault", "method": "GetPreferredAllocation", "hang": true}
    {"after": 5, "do": "register"}
    {"after": 5, "do": "restart"}
    {"after": 5, "do": "crash"}

A fault may have ``delay``, ``error``, ``garbage``, ``hang`` and ``crash``; with none of them the method is well again.
After ``restart`` the plugin has ended its connections; ``register`` has it registered again.
"""

import asyncio
import json
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import grpc.aio

from alignup.align.errors import ParseError
from alignup.testing.faults import Fault
from alignup.testing.offer import offered
from alignup.testing.server import Plugin

_Kind = type | tuple[type, ...]

#: What each thing to do has to be told.
_FIELDS: dict[str, dict[str, _Kind]] = {
    "health": {"id": str, "health": str},
    "remove": {"id": str},
    "devices": {"devices": str},
    "fault": {"method": str},
    "register": {},
    "restart": {},
    "crash": {},
}
_FAULTS: dict[str, _Kind] = {"delay": (int, float), "error": str, "garbage": bool, "hang": bool, "crash": bool}


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do."""

    after: float  #: seconds
    do: str
    told: dict[str, Any]


def parse(text: str) -> tuple[Step, ...]:
    """The steps of a script; ``ParseError`` says in which line something is wrong."""
    steps = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            steps.append(_step(json.loads(line)))
        except ValueError as error:
            raise ParseError(f"line {number} of the script: {error}") from error
    return tuple(steps)


async def play(steps: Iterable[Step], plugin: Plugin) -> None:
    """Do one step after the other."""
    for step in steps:
        await asyncio.sleep(step.after)
        await _do(step, plugin)


async def _do(step: Step, plugin: Plugin) -> None:
    told = step.told
    match step.do:
        case "health":
            plugin.set_health(told["id"], told["health"])
        case "remove":
            plugin.remove(told["id"])
        case "devices":
            plugin.set_devices(told["devices"])
        case "fault":
            faults = {name: value for name, value in told.items() if name != "method"}
            plugin.misbehave(told["method"], Fault(**faults))
        case "register":
            try:
                await plugin.register()
            except grpc.aio.AioRpcError as error:
                plugin.refusals.append(error.details() or "")
        case "restart":
            await plugin.restart()
        case _:
            os.kill(os.getpid(), signal.SIGKILL)


def _step(told: object) -> Step:
    """One line, once it is known to hold what it has to."""
    if not isinstance(told, dict):
        raise ParseError("a thing to do is an object")
    after, do = told.pop("after", 0), told.pop("do", None)
    if do not in _FIELDS:
        raise ParseError(f"there is no such thing to do: {do}; there are {', '.join(_FIELDS)}")
    if not isinstance(after, int | float) or after < 0:
        raise ParseError(f"after is a number of seconds, not {after}")
    kinds = _FIELDS[do] | (_FAULTS if do == "fault" else {})
    for name, value in told.items():
        if name not in kinds or not isinstance(value, kinds[name]):
            raise ParseError(f"{do} is told {', '.join(kinds) or 'nothing'}, not {name}: {value}")
    missing = _FIELDS[do].keys() - told.keys()
    if missing:
        raise ParseError(f"{do} has to be told {', '.join(sorted(missing))}")
    if do == "devices":
        offered("example.com/device", told["devices"])
    return Step(float(after), do, told)
