"""uvicorn inside a running event loop: it leaves signals to the process."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

_MAX_HEAD = 64 << 10  #: bytes of the request line and headers


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    head: float = 10.0  #: seconds to receive the request line and headers
    idle: int = 30  #: seconds before an idle connection is closed
    end: float = 10.0  #: seconds to finish running requests at shutdown
    connections: int = 512


class ApiServer(uvicorn.Server):
    def __init__(self, app: ASGIApp, limits: ServerLimits) -> None:
        class LimitedProtocol(_Protocol):
            head_timeout = limits.head

        self._limits = limits
        self._serving = asyncio.Event()
        super().__init__(
            uvicorn.Config(
                app,
                http=LimitedProtocol,
                ws="none",
                loop="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=limits.connections,
                timeout_keep_alive=limits.idle,
                timeout_graceful_shutdown=limits.end,  # type: ignore[arg-type] # uvicorn takes fractions too
                h11_max_incomplete_event_size=_MAX_HEAD,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._serving.set()

    async def ready(self, task: asyncio.Future[None]) -> None:
        """Wait until requests are served; raise what *task*, which runs ``serve``, raised."""
        serving = asyncio.ensure_future(self._serving.wait())
        watched: set[asyncio.Future[Any]] = {serving, task}
        await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        serving.cancel()
        if task.done():
            task.result()

    async def end(self, task: asyncio.Future[None]) -> None:
        """Finish running requests and stop; abort those that take too long."""
        self.should_exit = True
        await asyncio.wait({task}, timeout=self._limits.end + 10)  # uvicorn itself cancels requests after limits.end
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()
        if not task.done():
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class _Protocol(H11Protocol):
    """uvicorn's protocol with a timeout for the head of a request."""

    head_timeout: float
    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn itself
        super().connection_made(transport)
        self.timer = self.loop.call_later(self.head_timeout, self._time_out)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._between_requests():
            self._stop_timer()
        elif self.timer is None:
            self.timer = self.loop.call_later(self.head_timeout, self._time_out)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _time_out(self) -> None:
        self.timer = None
        if self._between_requests():
            self.transport.close()
