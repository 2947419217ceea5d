"""The script actions of a container runtime, besides ``fault`` and ``crash`` (``alignup.testing.script``).

    {"after": 1, "do": "image", "image": "busybox"}
    {"after": 1, "do": "pullable", "image": "registry.test/app:1=sleep 60"}
    {"after": 1, "do": "forget", "image": "busybox"}
    {"after": 1, "do": "network", "ready": false}
    {"after": 5, "do": "kill", "container": "main", "signal": 9}
    {"after": 5, "do": "lose", "pod": "web"}
    {"after": 5, "do": "drop", "seconds": 2}

``kill`` signals the newest container of that name, if any; ``lose`` ends all sandboxes of a pod. ``drop`` makes the
runtime unreachable for some seconds while its containers keep running. After ``crash`` they keep running as orphans.
"""

import asyncio
import signal
from contextlib import suppress

from alignup.align.errors import ParseError
from alignup.testing.runtime.server import Runtime
from alignup.testing.script import Action, Actions, Arguments


def _check_signal(step: Arguments) -> None:
    if step["signal"] not in signal.valid_signals():
        raise ParseError(f"{step['signal']} is not a signal")


def _kill(runtime: Runtime, step: Arguments) -> None:
    with suppress(KeyError):
        runtime.kill(step["container"], signal.Signals(step["signal"]))


def _network(runtime: Runtime, step: Arguments) -> None:
    runtime.service.network = step["ready"]


async def _drop(runtime: Runtime, step: Arguments) -> None:
    await runtime.drop()
    await asyncio.sleep(step["seconds"])
    await runtime.serve()


ACTIONS: Actions[Runtime] = {
    "image": Action(lambda runtime, step: runtime.images.add(step["image"]), required={"image": str}),
    "pullable": Action(lambda runtime, step: runtime.images.add_pullable(step["image"]), required={"image": str}),
    "forget": Action(lambda runtime, step: runtime.images.remove(step["image"]), required={"image": str}),
    "network": Action(_network, required={"ready": bool}),
    "kill": Action(_kill, required={"container": str, "signal": int}, check=_check_signal),
    "lose": Action(lambda runtime, step: runtime.fail_sandboxes(step["pod"]), required={"pod": str}),
    "drop": Action(_drop, required={"seconds": int | float}),
}
