"""How a plugin for tests spoils its answers."""

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import dataclass

import grpc
from google.protobuf.message import Message

GARBAGE = b"\xff\xff\xff\xff this is no message"


class SpoiltError(Exception):
    """The call is to fail; what the caller is told, and under which code."""

    def __init__(self, text: str, *, code: grpc.StatusCode = grpc.StatusCode.UNKNOWN) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """How the answers to one kind of call are spoilt; as it is, not at all."""

    delay: float = 0.0  #: seconds until it is answered
    error: str = ""  #: it fails, with this text
    garbage: bool = False  #: the answer is no message
    hang: bool = False  #: there is never an answer
    crash: bool = False  #: the process ends as by ``kill -9``

    async def spoil(self, answer: Message, *, over: asyncio.Event) -> bytes:
        """What becomes of *answer*, as bytes; :class:`SpoiltError` where the call fails, and when all is *over*."""
        if self.hang or self.delay:
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), None if self.hang else self.delay)
                raise SpoiltError("the plugin stops", code=grpc.StatusCode.UNAVAILABLE)
        if self.crash:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.error:
            raise SpoiltError(self.error)
        return GARBAGE if self.garbage else answer.SerializeToString()


NONE = Fault()
