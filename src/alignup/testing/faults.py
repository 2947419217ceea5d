"""Faults that a test server injects into its calls."""

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import dataclass

import grpc
from google.protobuf.message import Message

from alignup.align.errors import ParseError
from alignup.rpc import StatusError

GARBAGE = b"\xff\xff\xff\xff not a message"
ALL_METHODS = "*"  #: every method for which no other fault is set


class InjectedError(StatusError):
    """A failure that was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """How calls of one method fail; the default is not at all."""

    delay: float = 0.0  #: seconds
    error: str = ""  #: the call fails with this message
    code: str = "UNKNOWN"  #: the gRPC status of ``error``
    garbage: bool = False  #: the response does not decode
    hang: bool = False  #: the call never returns
    crash: bool = False  #: the process dies as by ``kill -9``
    done: bool = False  #: the request is carried out before the fault applies: only the response is lost
    times: int | None = None  #: number of calls; ``None``: all

    def __post_init__(self) -> None:
        if self.code not in grpc.StatusCode.__members__ or self.code == "OK":
            codes = ", ".join(name for name in grpc.StatusCode.__members__ if name != "OK")
            raise ParseError(f"a call cannot fail with {self.code}; use one of {codes}")

    async def apply(self, *, stopping: asyncio.Event) -> None:
        """Delay, crash or raise :class:`InjectedError`; a delay ends early when the server is *stopping*."""
        if self.hang or self.delay:
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), None if self.hang else self.delay)
                raise InjectedError("the server stops", code=grpc.StatusCode.UNAVAILABLE)
        if self.crash:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.error:
            raise InjectedError(self.error, code=grpc.StatusCode[self.code])

    def serialize(self, response: Message) -> bytes:
        return GARBAGE if self.garbage else response.SerializeToString()


NO_FAULT = Fault()
