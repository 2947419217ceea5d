"""uvicorn, as a guest in an event loop that is not its own: it leaves signals alone, and ends when told to."""

import asyncio
import math
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

_LONGEST_HEAD = 64 << 10  #: bytes of a request's first line and headers


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """How long clients are waited for, in seconds, and how many there may be."""

    head: float = 10.0  #: until the first line and the headers of a request are here
    idle: int = 30  #: until a connection is closed on which nothing is asked any more
    end: float = 10.0  #: at the end, until what is under way is given up
    connections: int = 512


class ApiServer(uvicorn.Server):
    """A server for one application."""

    def __init__(self, app: ASGIApp, timing: ServerLimits) -> None:
        class Patient(_Protocol):
            patience = timing.head

        self._timing = timing
        self._answering = asyncio.Event()
        super().__init__(
            uvicorn.Config(
                app,
                http=Patient,
                ws="none",
                loop="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=timing.connections,
                timeout_keep_alive=timing.idle,
                timeout_graceful_shutdown=math.ceil(timing.end),
                h11_max_incomplete_event_size=_LONGEST_HEAD,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the business of whoever owns the process."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        self._answering.set()

    async def ready(self, task: asyncio.Future[None]) -> None:
        """Until requests are answered; what went wrong with *task*, which serves, is raised here."""
        answering = asyncio.ensure_future(self._answering.wait())
        watched: set[asyncio.Future[Any]] = {answering, task}
        await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        answering.cancel()
        if task.done():
            task.result()

    async def end(self, task: asyncio.Future[None]) -> None:
        """Answer what is under way, and end; what takes too long is cut off."""
        self.should_exit = True
        await asyncio.wait({task}, timeout=self._timing.end + 1)
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()
        if not task.done():
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class _Protocol(H11Protocol):
    """uvicorn's own, with an end to waiting for a request that comes in drops."""

    patience: float  #: seconds until the head of a request has to be here
    waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn itself
        """Somebody is there."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Something came."""
        super().data_received(data)
        if not self._between_requests():
            self._stop_waiting()
        elif self.waiting is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is there any more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _wait(self) -> None:
        self.waiting = self.loop.call_later(self.patience, self._give_up)

    def _stop_waiting(self) -> None:
        if self.waiting is not None:
            self.waiting.cancel()
            self.waiting = None

    def _give_up(self) -> None:
        self.waiting = None
        if self._between_requests():
            self.transport.close()
