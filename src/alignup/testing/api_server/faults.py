"""Error responses of the API server, and faults that it injects into requests."""

import asyncio
import json
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from alignup.testing.api_server.http_server import ClosedError, HttpConnection

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class StatusProblem(Exception):  # noqa: N818 - the name of the response's type
    """The failure of a request with this status."""

    def __init__(self, code: int, message: str, *, reason: str = "", **details: object) -> None:
        super().__init__(message)
        self.code, self.message = code, message
        self.reason = reason or _REASONS.get(code, "")
        self.details = details

    @property
    def status(self) -> dict[str, Any]:
        """The ``Status`` object."""
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        details = {"details": self.details} if self.details else {}
        return {**status, "message": self.message, "reason": self.reason, "code": self.code, **details}


def dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def success() -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


def not_found(plural: str, name: str) -> StatusProblem:
    return StatusProblem(404, f'{plural} "{name}" not found')


def conflict(plural: str, name: str, why: str) -> StatusProblem:
    return StatusProblem(409, f'Operation cannot be fulfilled on {plural} "{name}": {why}')


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
        """Return the most specific fault for one request, which is counted."""
        for key in ((verb, resource), (verb, "*"), ("*", resource), ("*", "*")):
            fault = self._faults.get(key)
            if fault is not None:
                if fault.times is not None:
                    self._faults[key] = replace(fault, times=fault.times - 1)
                    if fault.times <= 1:
                        del self._faults[key]
                return fault if fault.times != 0 else None
        return None
