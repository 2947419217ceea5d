"""The failures of requests: error responses, and faults that the API server injects."""

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec

from alignup.testing.api_server.http_server import ClosedError, HttpConnection
from alignup.testing.script import InjectedFault

GARBAGE = b'{"kind":"Pod","metadata":'
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
        self.code = code
        self.status: dict[str, Any] = {  #: the ``Status`` object
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason or _REASONS.get(code, ""),
            "code": code,
            **({"details": details} if details else {}),
        }


def conflict(plural: str, name: str, why: str) -> StatusProblem:
    return StatusProblem(409, f'Operation cannot be fulfilled on {plural} "{name}": {why}')


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiFault(InjectedFault):
    """A fault of requests to the API server, by default of the next one."""

    status: int = 0  #: the HTTP status of an error response; 0: none
    reason: str = ""
    message: str = "injected"
    retry_after: int = 0  #: seconds
    disconnect: bool = False  #: the connection breaks
    times: int | None = 1

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
            await connection.respond(self.status, msgspec.json.encode(problem.status), headers)
        elif self.garbage:
            await connection.respond(200, GARBAGE)
        return bool(self.status) or self.garbage
