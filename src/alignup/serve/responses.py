"""HTTP responses: JSON documents, and problems as defined in RFC 9457."""

from collections.abc import Iterable, Mapping
from http import HTTPStatus

from starlette.responses import Response

from alignup.align.errors import FileError, PodError, Problem, WorkLimitError
from alignup.schema import codec
from alignup.schema.api import BusyError, FieldProblem, NotReadyError, ProblemDocument

JSON = "application/json"
YAML = "application/yaml"
PROBLEM = "application/problem+json"
SVG = "image/svg+xml"
TEXT = "text/plain"
MANIFEST_TYPES = (JSON, YAML, "application/x-yaml", "text/yaml", "text/x-yaml")

RETRY_SOON, RETRY_LATER = {"Retry-After": "1"}, {"Retry-After": "5"}
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


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
            errors=[FieldProblem(one.field, one.what) for one in errors],
        )

    def response(self) -> Response:
        return json_response(self.document, status=self.status, media_type=PROBLEM, headers=self.headers)


#: Errors of the backend, and of reading a pod, that have a problem response.
BackendError = (PodError, WorkLimitError, BusyError, NotReadyError, FileError)


def backend_problem(error: Exception) -> ProblemError:
    match error:
        case PodError():
            return ProblemError(422, f"Invalid pod: {error}", errors=error.problems)
        case WorkLimitError():
            errors = [Problem(source, "makes the search too large") for source in error.sources]
            return ProblemError(422, str(error), errors=errors)
        case BusyError():
            return ProblemError(429, str(error), headers=RETRY_SOON)
        case _:
            return ProblemError(503, str(error), headers=RETRY_LATER)


def json_response(
    document: object, *, status: int = 200, media_type: str = JSON, headers: Mapping[str, str] | None = None
) -> Response:
    content = codec.encode(document) + b"\n"
    return Response(content, status_code=status, media_type=media_type, headers={**HEADERS, **(headers or {})})
