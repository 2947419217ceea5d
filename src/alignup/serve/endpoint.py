"""One path of the API: its methods, authentication, and query parameters.

A path answers ``HEAD`` like ``GET`` without the body, and ``OPTIONS`` with the methods it supports.
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
from alignup.serve.responses import HEADERS, BackendError, ProblemError, backend_problem
from alignup.serve.routes import Operation

ParameterValues = Mapping[str, Any]  #: by name; parameters without a value or default are left out
Handler = Callable[[Request, ParameterValues], Awaitable[ASGIApp]]

_log = logging.getLogger(__name__)


class ApiEndpoint:
    def __init__(self, operations: Mapping[str, tuple[Operation, Handler]], *, token: bytes | None = None) -> None:
        self._operations = dict(operations)
        if "GET" in operations:
            self._operations["HEAD"] = operations["GET"]
        self._allow = {"Allow": ", ".join(sorted({*self._operations, "OPTIONS"}))}
        self._token = None if any(one.unauthenticated for one, _ in operations.values()) else token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response: ASGIApp
        try:
            if self._token is not None:
                _check_token(request, self._token)
            if request.method == "OPTIONS":
                response = Response(status_code=204, headers=HEADERS | self._allow)
            elif request.method not in self._operations:
                detail = f"This path does not support {request.method}."
                response = ProblemError(405, detail, headers=self._allow).response()
            else:
                operation, handler = self._operations[request.method]
                response = await handler(request, _parse_parameters(operation, request))
        except ProblemError as problem:
            response = problem.response()
        except BackendError as error:
            response = backend_problem(error).response()
        await response(scope, receive, _without_body(send) if request.method == "HEAD" else send)


async def not_found(request: Request, error: Exception) -> Response:
    del error
    return ProblemError(404, f"There is no {request.url.path}; see /openapi.json for the API.").response()


async def internal_error(request: Request, error: Exception) -> Response:
    _log.error("%s %s failed: %s", request.method, request.url.path, type(error).__name__)
    return ProblemError(500, "Internal error; see the log of the agent.").response()


def _check_token(request: Request, token: bytes) -> None:
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    # A comparison in constant time does not reveal how much of the token is right.
    valid = hmac.compare_digest(credentials.strip().encode("utf-8", "replace"), token)
    if scheme.lower() != "bearer" or not valid:
        detail = "The request needs a valid token: Authorization: Bearer TOKEN"
        raise ProblemError(401, detail, headers={"WWW-Authenticate": "Bearer"})


def _parse_parameters(operation: Operation, request: Request) -> ParameterValues:
    """Return the parameter values; the problem names every unknown, repeated or invalid parameter."""
    problems: list[Problem] = []
    texts: dict[str, str] = {name: str(value) for name, value in request.path_params.items()}
    known = {one.name for one in operation.parameters if not one.in_path}
    for name, text in parse_qsl(request.url.query, keep_blank_values=True):
        if name in known and name not in texts:
            texts[name] = text
        elif operation.strict:
            problems.append(Problem(name, "is given twice" if name in known else "is not a parameter of this path"))
    values: dict[str, Any] = {}
    for one in operation.parameters:
        if one.name not in texts:
            values |= {} if one.default is None else {one.name: one.default}
            continue
        try:
            values[one.name] = one.parse(texts[one.name])
        except ValueError as error:
            problems.append(Problem(one.name, f"must be {error}"))
    if problems:
        raise ProblemError(400, "; ".join(map(str, problems)), errors=problems)
    return values


def _without_body(send: Send) -> Send:
    async def send_headers(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return send_headers
