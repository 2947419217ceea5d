"""HTTP responses: JSON documents, and the problems of RFC 9457 that stand for errors."""

from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any

from msgspec import Meta
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from alignup.align.errors import FileError, PodError, Problem, WorkLimitError
from alignup.documents import codec
from alignup.documents.codec import Document

JSON = "application/json"
YAML = "application/yaml"
PROBLEM = "application/problem+json"
SVG = "image/svg+xml"
TEXT = "text/plain"

RETRY_SOON, RETRY_LATER = {"Retry-After": "1"}, {"Retry-After": "5"}
CLOSE = {"Connection": "close"}
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class NotReadyError(Exception):
    """The program cannot answer now; the message gives the reason and a remedy."""


class BusyError(Exception):
    """A queue is full."""


class LedgerFullError(BusyError):
    """The agent's ledger has no space for another pod; pods must be released first."""


class FieldProblem(Document, frozen=True):
    field: str
    message: str


class ProblemDocument(Document, frozen=True, kw_only=True):
    """A problem as defined in RFC 9457; `errors` lists every invalid field."""

    type: Annotated[str, Meta(extra_json_schema={"format": "uri-reference"})] = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[FieldProblem]


class ProblemError(Exception):
    """A request that fails; ``document`` replaces the standard problem document."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        errors: Iterable[Problem] = (),
        headers: Mapping[str, str] | None = None,
        document: ProblemDocument | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = headers
        self.document = document or ProblemDocument(
            title=HTTPStatus(status).phrase,
            status=status,
            detail=detail,
            errors=[FieldProblem(error.field, error.message) for error in errors],
        )

    def response(self) -> Response:
        return json_response(self.document, status=self.status, media_type=PROBLEM, headers=self.headers)


#: Errors of a program, and of reading a pod, that have a problem response.
ServiceError = (PodError, WorkLimitError, BusyError, NotReadyError, FileError)


def service_problem(error: Exception) -> ProblemError:
    """Return the problem of one of ``ServiceError``."""
    match error:
        case PodError():
            return ProblemError(422, f"Invalid pod: {error}", errors=error.problems)
        case WorkLimitError():
            errors = [Problem(source, "makes the search too large") for source in error.sources]
            return ProblemError(422, str(error), errors=errors)
        case LedgerFullError():
            return ProblemError(507, str(error))
        case BusyError():
            return ProblemError(429, str(error), headers=RETRY_SOON)
        case _:
            return ProblemError(503, str(error), headers=RETRY_LATER)


def json_response(
    document: object, *, status: int = 200, media_type: str = JSON, headers: Mapping[str, str] | None = None
) -> Response:
    content = codec.encode(document) + b"\n"
    return Response(content, status_code=status, media_type=media_type, headers={**HEADERS, **(headers or {})})


def list_response(document: object, items: Sequence[bytes]) -> Response:
    """Return *document*, whose first field is an empty list, with the encoded *items* in that list."""
    content = codec.encode(document).replace(b"[]", b"[%b]" % b",".join(items), 1) + b"\n"
    return Response(content, media_type=JSON, headers=HEADERS)


def make_app(routes: Sequence[BaseRoute], handlers: Mapping[Any, Any] | None = None) -> Starlette:
    """Build an application; *handlers* are responses to statuses and errors, beside the one to internal errors."""
    app = Starlette(routes=routes, exception_handlers={Exception: internal_error, **(handlers or {})})
    app.router.redirect_slashes = False
    return app


async def wrong_method(request: Request, _error: Exception) -> Response:
    return ProblemError(405, f"This path does not support {request.method}.").response()


async def internal_error(_request: Request, _error: Exception) -> Response:
    """Return a response without details; the server logs the error."""
    return ProblemError(500, "Internal error; see the log of the program.").response()
