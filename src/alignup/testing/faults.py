"""How a plugin or a runtime for tests spoils its answers."""

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import dataclass, replace

import grpc
from google.protobuf.message import Message

from alignup.align.errors import ParseError
from alignup.rpc import StatusError

GARBAGE = b"\xff\xff\xff\xff this is no message"
ALL_METHODS = "*"  #: in the place of a method: every one that has no fault of its own


class InjectedError(StatusError):
    """The call is to fail; what the caller is told, and under which code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """How the answers to one kind of call are spoilt; as it is, not at all."""

    delay: float = 0.0  #: seconds until it is answered
    error: str = ""  #: it fails, with this text
    code: str = "UNKNOWN"  #: gRPC's name for such a failure
    garbage: bool = False  #: the answer is no message
    hang: bool = False  #: there is never an answer
    crash: bool = False  #: the process ends as by ``kill -9``
    done: bool = False  #: what was asked for is done all the same; the caller just does not hear of it
    times: int | None = None  #: how many calls; ``None``: all that come

    def __post_init__(self) -> None:
        if self.code not in grpc.StatusCode.__members__ or self.code == "OK":
            known = ", ".join(name for name in grpc.StatusCode.__members__ if name != "OK")
            raise ParseError(f"a call cannot fail with {self.code}; there are {known}")

    async def apply(self, *, over: asyncio.Event) -> None:
        """Let it happen; :class:`InjectedError` where the call fails, and when all is *over*."""
        if self.hang or self.delay:
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), None if self.hang else self.delay)
                raise InjectedError("the server stops", code=grpc.StatusCode.UNAVAILABLE)
        if self.crash:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.error:
            raise InjectedError(self.error, code=grpc.StatusCode[self.code])

    def raw(self, answer: Message) -> bytes:
        """*answer* as it is sent."""
        return GARBAGE if self.garbage else answer.SerializeToString()


NO_FAULT = Fault()


class Faults:
    """The faults of all methods, each as long as it lasts."""

    def __init__(self) -> None:
        self._of: dict[str, Fault] = {}

    def set(self, method: str, fault: Fault) -> None:
        """Spoil calls of *method* so from now on."""
        self._of[method] = fault

    def take(self, method: str) -> Fault:
        """What becomes of a call that has come."""
        name = method if method in self._of else ALL_METHODS
        fault = self._of.get(name, NO_FAULT)
        if fault.times is None:
            return fault
        if fault.times > 1:
            self._of[name] = replace(fault, times=fault.times - 1)
        else:
            del self._of[name]
        return fault if fault.times > 0 else NO_FAULT
