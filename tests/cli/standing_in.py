"""The small agent of the API's tests on a socket of its own, in a thread, for commands that talk to agents."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from alignup.schema.api import PodRunStatus
from tests.serve.agents import Agent, manifest
from tests.serve.serving import on_unix

Result = TypeVar("Result")


@dataclass(frozen=True)
class StandIn:
    """An agent that answers."""

    agent: Agent
    loop: asyncio.AbstractEventLoop
    address: str

    @property
    def env(self) -> dict[str, str]:
        return {"ALIGNUP_AGENT": self.address}

    def do(self, what: Callable[[Agent], Result]) -> Result:
        """Have something done where the agent lives."""

        async def done() -> Result:
            return what(self.agent)

        return asyncio.run_coroutine_threadsafe(done(), self.loop).result(10)

    def admit(self, name: str, run: PodRunStatus | None = None, **amounts: str) -> str:
        """A pod of that name is there, and is run so; its uid."""
        asked = {"cpu": "1", "memory": "1Gi"} | amounts
        admitting = self.agent.admit_document(manifest(name, **asked))
        admission = asyncio.run_coroutine_threadsafe(admitting, self.loop).result(10)
        assert admission.entry is not None
        uid = admission.entry.pod.uid
        if run is not None:
            self.do(lambda agent: agent.run(uid, run))
        return uid


@contextmanager
def standing_in(directory: Path) -> Iterator[StandIn]:
    """An agent that answers on a socket in *directory*."""
    path = directory / "agent.sock"
    answers = threading.Event()
    made: list[StandIn] = []
    over: list[asyncio.Event] = []

    async def live() -> None:
        agent = Agent(patient=True)
        over.append(asyncio.Event())
        async with on_unix(agent, path):
            made.append(StandIn(agent, asyncio.get_running_loop(), f"unix:{path}"))
            answers.set()
            await over[0].wait()

    thread = threading.Thread(target=asyncio.run, args=(live(),))
    thread.start()
    assert answers.wait(10)
    try:
        yield made[0]
    finally:
        made[0].loop.call_soon_threadsafe(over[0].set)
        thread.join(20)
