"""The fake agent of the API tests on a socket, served from a thread, for the commands that talk to an agent."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from alignup.agent.state import PodView
from tests.agent.fake_backend import FakeBackend, manifest
from tests.web.real_server import on_unix

Result = TypeVar("Result")


class PolledBackend(FakeBackend):
    """Calls ``third_poll`` before it answers the third request for one pod."""

    def __init__(self) -> None:
        super().__init__(wait_enabled=True)
        self.polls = 0
        self.third_poll: Callable[[], object] = lambda: None

    def pod_view(self, uid: str) -> PodView | None:
        self.polls += 1
        if self.polls == 3:
            self.third_poll()
        return super().pod_view(uid)


@dataclass(frozen=True)
class FakeAgent:
    """A fake agent that serves its API on a Unix socket."""

    agent: PolledBackend
    loop: asyncio.AbstractEventLoop
    address: str

    @property
    def env(self) -> dict[str, str]:
        return {"ALIGNUP_AGENT": self.address}

    def call(self, function: Callable[[PolledBackend], Result]) -> Result:
        """Call *function* in the thread that serves the agent."""

        async def call() -> Result:
            return function(self.agent)

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(60)

    def admit(self, name: str, **amounts: str) -> str:
        """Admit a pod, and return its uid."""
        requests = {"cpu": "1", "memory": "1Gi"} | amounts
        admission = asyncio.run_coroutine_threadsafe(
            self.agent.admit_document(manifest(name, **requests)), self.loop
        ).result(60)
        assert admission.pod_view is not None
        return admission.pod_view.pod.uid


@contextmanager
def served_in_a_thread(serve: Callable[[asyncio.Event], AbstractAsyncContextManager[Result]]) -> Iterator[Result]:
    """Serve in the event loop of another thread; *serve* gets an event that is set at the end."""
    entered: Future[tuple[Result, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def run() -> None:
        stopping = asyncio.Event()
        async with serve(stopping) as result:
            entered.set_result((result, asyncio.get_running_loop(), stopping))
            await stopping.wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    result, loop, stopping = entered.result(60)
    try:
        yield result
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join()


@contextmanager
def serve_fake_agent(directory: Path) -> Iterator[FakeAgent]:
    """Serve a fake agent on a socket in *directory*."""
    path = directory / "agent.sock"

    @asynccontextmanager
    async def serve(_: asyncio.Event) -> AsyncIterator[FakeAgent]:
        agent = PolledBackend()
        async with on_unix(agent, path):
            yield FakeAgent(agent, asyncio.get_running_loop(), f"unix:{path}")

    with served_in_a_thread(serve) as agent:
        yield agent
