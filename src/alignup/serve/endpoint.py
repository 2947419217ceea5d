"""One path of the API: which methods it knows, who may ask, and what the parameters say.

A path answers ``HEAD`` as it would ``GET``, and ``OPTIONS`` with what it knows; any other method is told the same.
"""

import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from alignup.align.errors import Problem
from alignup.serve.responses import HEADERS, ProblemError
from alignup.serve.routes import Operation

ParameterValues = Mapping[
    str, Any
]  #: the values of an operation's parameters, by name; those without a value are left out
Handler = Callable[[Request, ParameterValues], Awaitable[ASGIApp]]

_log = logging.getLogger(__name__)


class ApiEndpoint:
    """The operations of one path, each with who answers it."""

    def __init__(self, operations: Mapping[str, tuple[Operation, Handler]], *, token: bytes | None = None) -> None:
        self._operations = dict(operations)
        if "GET" in operations:
            self._operations["HEAD"] = operations["GET"]
        self._allow = {"Allow": ", ".join(sorted({*self._operations, "OPTIONS"}))}
        self._token = None if any(one.open for one, _ in operations.values()) else token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        try:
            answer = await self._answer(request)
        except ProblemError as problem:
            answer = problem.response()
        await answer(scope, receive, _without_body(send) if request.method == "HEAD" else send)

    async def _answer(self, request: Request) -> ASGIApp:
        if self._token is not None:
            _check_token(request, self._token)
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=HEADERS | self._allow)
        if request.method not in self._operations:
            raise ProblemError(405, f"{request.method} is not known here.", headers=self._allow)
        operation, handler = self._operations[request.method]
        return await handler(request, _given(operation, request))


async def not_found(request: Request, error: Exception) -> Response:
    """There is no such path."""
    del error
    return ProblemError(404, f"There is no {request.url.path} here; /openapi.json says what there is.").response()


async def internal_error(request: Request, error: Exception) -> Response:
    """A fault of ours, which is in the log and nobody else's business."""
    _log.error("%s %s failed: %s", request.method, request.url.path, type(error).__name__)
    return ProblemError(500, "This went wrong here, and not with you; the log says how.").response()


def _check_token(request: Request, token: bytes) -> None:
    scheme, _, said = request.headers.get("authorization", "").partition(" ")
    # Compared whole, so that how long it takes does not tell how much of it was right.
    right = hmac.compare_digest(said.strip().encode("utf-8", "replace"), token)
    if scheme.lower() != "bearer" or not right:
        what = "The request has to bring the token: Authorization: Bearer …"
        raise ProblemError(401, what, headers={"WWW-Authenticate": "Bearer"})


def _given(operation: Operation, request: Request) -> ParameterValues:
    """The values of the parameters; one that is unknown, there twice or wrong is refused by name."""
    problems: list[Problem] = []
    texts: dict[str, str] = {name: str(value) for name, value in request.path_params.items()}
    known = {one.name for one in operation.query}
    for name, text in parse_qsl(request.url.query, keep_blank_values=True):
        if name in known and name not in texts:
            texts[name] = text
        elif operation.strict:
            problems.append(Problem(name, "is there twice" if name in known else "is not known here"))
    values: dict[str, Any] = {}
    for one in operation.parameters:
        if one.name not in texts:
            values |= {} if one.default is None else {one.name: one.default}
            continue
        try:
            values[one.name] = one.read(texts[one.name])
        except ValueError as error:
            problems.append(Problem(one.name, f"has to be {error}"))
    if problems:
        raise ProblemError(400, "; ".join(map(str, problems)), errors=problems)
    return values


def _without_body(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return sent
