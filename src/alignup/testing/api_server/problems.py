"""Error responses of the API server."""

import json
from typing import Any

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
    """A request fails with this status."""

    def __init__(self, code: int, message: str, *, reason: str = "", **details: object) -> None:
        super().__init__(message)
        self.code, self.message = code, message
        self.reason = reason or _REASONS.get(code, "")
        self.details = details

    @property
    def status(self) -> dict[str, Any]:
        """The ``Status`` object."""
        found = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        details = {"details": self.details} if self.details else {}
        return {**found, "message": self.message, "reason": self.reason, "code": self.code, **details}


def dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def success() -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


def not_found(plural: str, name: str) -> StatusProblem:
    return StatusProblem(404, f'{plural} "{name}" not found')


def conflict(plural: str, name: str, why: str) -> StatusProblem:
    return StatusProblem(409, f'Operation cannot be fulfilled on {plural} "{name}": {why}')
