"""The HTTP endpoint of an admission webhook, which the API server calls.

An error response makes the API server follow the ``failurePolicy`` of the webhook; its text is in the API server's log.
"""

from collections.abc import Callable
from contextlib import suppress

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from alignup.align.errors import ParseError
from alignup.web.api_operations import receive_body
from alignup.web.authentication import count_authenticated
from alignup.web.responses import JSON, ProblemError

MAX_REVIEW_BYTES = 8 << 20  #: an object of the API server has at most 3 MiB
_SECONDS = 10.0  #: for a review to arrive


def webhook_app(path: str, answer: Callable[[bytes], bytes]) -> Starlette:
    """Build the application; *answer* returns the answer to a review, or raises ``ParseError``."""

    async def review(request: Request) -> Response:
        try:
            body = await receive_body(request, limit=MAX_REVIEW_BYTES, seconds=_SECONDS, types=(JSON,), expected=JSON)
            answered = answer(body)
        except ParseError as error:
            return PlainTextResponse(f"not a review: {error}\n", status_code=400)
        except ProblemError as problem:
            return problem.response()
        with suppress(ProblemError):  # too many; this review has its answer
            count_authenticated(request)  # the API server keeps its connections open
        return Response(answered, media_type=JSON)

    app = Starlette(routes=[Route(path, review, methods=["POST"])])
    app.router.redirect_slashes = False
    return app
