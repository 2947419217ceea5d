"""Scripts for a runtime: a JSON object a line, each a thing to do, so many seconds after the one before.

    {"after": 0, "do": "fault", "method": "PullImage", "error": "no route to host", "code": "UNAVAILABLE", "times": 2}
    {"after": 0, "do": "fault", "method": "CreateContainer", "hang": true, "done": true, "times": 1}
    {"after": 1, "do": "image", "image": "busybox"}
    {"after": 1, "do": "pullable", "image": "registry.test/app:1=sleep 60"}
    {"after": 1, "do": "forget", "image": "busybox"}
    {"after": 1, "do": "network", "ready": false}
    {"after": 5, "do": "kill", "container": "main", "signal": 9}
    {"after": 5, "do": "lose", "pod": "web"}
    {"after": 5, "do": "drop", "seconds": 2}
    {"after": 5, "do": "crash"}

A fault may have ``delay``, ``error`` and its ``code``, ``garbage``, ``hang``, ``crash``, ``done`` and ``times``
(``alignup.testing.faults.Fault``), and ``*`` as its method; with none of them the method is well again. A container
that is killed is the last of that name, if there is one; sandboxes that are lost are all of that pod. Dropped, the
runtime is not there for so many seconds, and what runs goes on. A crash leaves it behind with nobody to mind it.
"""

import asyncio
import os
import signal
from collections.abc import Iterable
from contextlib import suppress

from alignup.testing import script
from alignup.testing.runtime.server import Runtime
from alignup.testing.script import ScriptStep

FIELDS: script.StepFields = {
    "fault": {"method": str},
    "image": {"image": str},
    "pullable": {"image": str},
    "forget": {"image": str},
    "network": {"ready": bool},
    "kill": {"container": str, "signal": int},
    "lose": {"pod": str},
    "drop": {"seconds": (int, float)},
    "crash": {},
}


def parse(text: str) -> tuple[ScriptStep, ...]:
    """The steps of a script; ``ParseError`` tells the line with an error."""
    return script.parse(text, fields=FIELDS)


async def play(steps: Iterable[ScriptStep], runtime: Runtime) -> None:
    """Do one step after the other."""
    for step in steps:
        await asyncio.sleep(step.after)
        await _do(step, runtime)


async def _do(step: ScriptStep, runtime: Runtime) -> None:
    told = step.told
    match step.do:
        case "fault":
            runtime.misbehave(told["method"], script.fault(told))
        case "image":
            runtime.images.add(told["image"])
        case "pullable":
            runtime.images.offer(told["image"])
        case "forget":
            runtime.images.remove(told["image"])
        case "network":
            runtime.service.network = told["ready"]
        case "kill":
            with suppress(KeyError):
                runtime.kill(told["container"], signal.Signals(told["signal"]))
        case "lose":
            await runtime.lose(told["pod"])
        case "drop":
            await runtime.drop()
            await asyncio.sleep(told["seconds"])
            await runtime.serve()
        case _:
            os.kill(os.getpid(), signal.SIGKILL)
