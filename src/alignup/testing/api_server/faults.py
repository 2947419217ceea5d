"""Faults that the server injects into requests."""

import asyncio
from dataclasses import dataclass, replace
from typing import ClassVar

from alignup.testing.api_server.http_server import ClosedError, HttpConnection
from alignup.testing.api_server.problems import StatusProblem, dump


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiFault:
    """How requests fail; the default is not at all."""

    status: int = 0  #: the HTTP status of an error response; 0: none
    reason: str = ""
    message: str = "injected"
    retry_after: int = 0  #: seconds
    garbage: bool = False  #: the response does not decode
    disconnect: bool = False  #: the connection breaks
    hang: bool = False  #: there is no response
    delay: float = 0.0  #: seconds
    done: bool = False  #: the request is carried out nevertheless: only the response is lost
    times: int | None = 1  #: number of requests; ``None``: all

    GARBAGE: ClassVar[bytes] = b'{"kind":"Pod","metadata":'

    async def apply(self, connection: HttpConnection) -> bool:
        """Send the response of this fault; return whether there was one."""
        if self.hang:
            await connection.wait_closed()
            raise ClosedError
        await asyncio.sleep(self.delay)
        if self.disconnect:
            connection.abort()
            raise ClosedError
        if self.status:
            headers = {"Retry-After": str(self.retry_after)} if self.retry_after else {}
            problem = StatusProblem(self.status, self.message, reason=self.reason)
            await connection.respond(self.status, dump(problem.status), headers)
        elif self.garbage:
            await connection.respond(200, self.GARBAGE)
        return bool(self.status) or self.garbage


class FaultTable:
    """The faults of each verb and resource."""

    def __init__(self) -> None:
        self._faults: dict[tuple[str, str], ApiFault] = {}

    def inject(self, fault: ApiFault, *, verb: str, resource: str) -> None:
        self._faults[verb, resource] = fault

    def take(self, verb: str, resource: str) -> ApiFault | None:
        """The fault for one request, which is counted; the most specific one."""
        for key in ((verb, resource), (verb, "*"), ("*", resource), ("*", "*")):
            fault = self._faults.get(key)
            if fault is not None:
                if fault.times is not None:
                    self._faults[key] = replace(fault, times=fault.times - 1)
                    if fault.times <= 1:
                        del self._faults[key]
                return fault if fault.times != 0 else None
        return None
