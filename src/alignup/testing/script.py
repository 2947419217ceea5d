"""Scripts for a plugin: a JSON object a line, each a thing to do, so many seconds after the one before.

    {"after": 1, "do": "health", "id": "gpu-0", "health": "Unhealthy"}
    {"after": 1, "do": "remove", "id": "gpu-1"}
    {"after": 1, "do": "devices", "devices": "2@0"}
    {"after": 0, "do": "fault", "method": "Allocate", "delay": 2, "error": "out of order"}
    {"after": 0, "do": "fault", "method": "GetPreferredAllocation", "hang": true}
    {"after": 5, "do": "register"}
    {"after": 5, "do": "restart"}
    {"after": 5, "do": "crash"}

A fault may have ``delay``, ``error`` and its ``code``, ``garbage``, ``hang``, ``crash``, ``done`` and ``times``
(``alignup.testing.faults.Fault``); with none of them the method is well again.
After ``restart`` the plugin has ended its connections; ``register`` has it registered again.
"""

import asyncio
import json
import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc.aio

from alignup.align.errors import ParseError
from alignup.testing.device_list import parse_device_list
from alignup.testing.faults import Fault
from alignup.testing.plugin_server import Plugin

FieldType = type | tuple[type, ...]
StepFields = Mapping[str, Mapping[str, FieldType]]  #: what each thing to do has to be told

_FIELDS: StepFields = {
    "health": {"id": str, "health": str},
    "remove": {"id": str},
    "devices": {"devices": str},
    "fault": {"method": str},
    "register": {},
    "restart": {},
    "crash": {},
}
_FAULTS: dict[str, FieldType] = {
    "delay": (int, float),
    "error": str,
    "code": str,
    "garbage": bool,
    "hang": bool,
    "crash": bool,
    "done": bool,
    "times": int,
}


@dataclass(frozen=True, slots=True)
class ScriptStep:
    """One thing to do."""

    after: float  #: seconds
    do: str
    told: dict[str, Any]


def parse(text: str, *, fields: StepFields = _FIELDS) -> tuple[ScriptStep, ...]:
    """The steps of a script, of a plugin's unless said otherwise; ``ParseError`` tells the line with an error."""
    steps = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            steps.append(_step(json.loads(line), fields))
        except ValueError as error:
            raise ParseError(f"line {number} of the script: {error}") from error
    return tuple(steps)


async def play(steps: Iterable[ScriptStep], plugin: Plugin) -> None:
    """Do one step after the other."""
    for step in steps:
        await asyncio.sleep(step.after)
        await _do(step, plugin)


async def _do(step: ScriptStep, plugin: Plugin) -> None:
    told = step.told
    match step.do:
        case "health":
            plugin.set_health(told["id"], told["health"])
        case "remove":
            plugin.remove(told["id"])
        case "devices":
            plugin.set_devices(told["devices"])
        case "fault":
            plugin.misbehave(told["method"], fault(told))
        case "register":
            try:
                await plugin.register()
            except grpc.aio.AioRpcError as error:
                plugin.rejections.append(error.details() or "")
        case "restart":
            await plugin.restart()
        case _:
            os.kill(os.getpid(), signal.SIGKILL)


def fault(told: Mapping[str, Any]) -> Fault:
    """The fault a step tells of."""
    return Fault(**{name: value for name, value in told.items() if name != "method"})


def _step(told: object, fields: StepFields) -> ScriptStep:
    """One line, once it is known to hold what it has to."""
    if not isinstance(told, dict):
        raise ParseError("a thing to do is an object")
    after, do = told.pop("after", 0), told.pop("do", None)
    if do not in fields:
        raise ParseError(f"there is no such thing to do: {do}; there are {', '.join(fields)}")
    if not isinstance(after, int | float) or after < 0:
        raise ParseError(f"after is a number of seconds, not {after}")
    kinds = {**fields[do], **(_FAULTS if do == "fault" else {})}
    for name, value in told.items():
        if name not in kinds or not isinstance(value, kinds[name]):
            raise ParseError(f"{do} is told {', '.join(kinds) or 'nothing'}, not {name}: {value}")
    missing = fields[do].keys() - told.keys()
    if missing:
        raise ParseError(f"{do} has to be told {', '.join(sorted(missing))}")
    _check(do, told)
    return ScriptStep(float(after), do, told)


def _check(do: str, told: Mapping[str, Any]) -> None:
    """Refuse what would fail only when it is done."""
    match do:
        case "devices":
            parse_device_list("example.com/device", told["devices"])
        case "fault":
            fault(told)
        case "kill" if told["signal"] not in signal.valid_signals():
            raise ParseError(f"{told['signal']} is no signal")
