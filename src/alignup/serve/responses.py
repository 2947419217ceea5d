"""Answers over HTTP: JSON documents, and problems as RFC 9457 has them.

Every problem says what is wrong with which field, and where there is something to do about it, what.
"""

import json
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from alignup.align.errors import Problem

JSON = "application/json"
PROBLEM = "application/problem+json"
SVG = "image/svg+xml"
TEXT = "text/plain"

#: Answers tell of one moment, and are what they say they are.
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class ProblemError(Exception):
    """A request that cannot be served; ``status`` and the rest are what the answer says."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        errors: Iterable[Problem] = (),
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.errors = tuple(errors)
        self.headers = dict(headers or {})
        self.more = dict(more or {})

    def response(self) -> Response:
        """The problem as it goes over the wire."""
        document = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "errors": [{"field": one.field, "what": one.what} for one in self.errors],
            **self.more,
        }
        return _written(document, status=self.status, media_type=PROBLEM, headers=self.headers)


def json_response(content: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON document."""
    return _written(content, status=status, media_type=JSON, headers=headers or {})


def plain_response(content: str | bytes, *, media_type: str, headers: Mapping[str, str] | None = None) -> Response:
    """Anything else."""
    return Response(content, media_type=media_type, headers={**HEADERS, **(headers or {})})


def _written(content: object, *, status: int, media_type: str, headers: Mapping[str, str]) -> Response:
    # Half a surrogate pair, which JSON can spell and UTF-8 cannot, is written as a question mark.
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return Response(text + b"\n", status_code=status, media_type=media_type, headers={**HEADERS, **headers})
