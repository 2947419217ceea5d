"""One path of the API: its methods, authentication, query parameters, and the pod in its request body.

A path answers ``HEAD`` like ``GET``; the server omits the body. It answers ``OPTIONS`` with the methods it supports.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from email.message import Message
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from alignup.agent.routes import Operation
from alignup.align.errors import AlignError, ParseError, PodError, Problem
from alignup.align.workload import Pod
from alignup.web import responses
from alignup.web.access import AccessRules, count_authenticated
from alignup.web.responses import ProblemError

ParameterValues = Mapping[str, Any]  #: by name; parameters without a value or default are left out
Handler = Callable[[Request, ParameterValues], Awaitable[ASGIApp]]
ReadPod = Callable[[bytes], Pod]  #: reads JSON or YAML; raises ``PodError`` or ``ParseError``
ReadJsonPod = Callable[[bytes], Pod | None]  #: reads usual pods in JSON quickly; ``None``: ``ReadPod`` must read it

_INLINE_BYTES = 16 << 10  #: parsing JSON up to this size takes less time than a thread switch
_CLOSE = {"Connection": "close"}  #: the rest of the request stays unread, so the connection cannot be reused

_log = logging.getLogger(__name__)


class ApiEndpoint:
    def __init__(self, operations: Mapping[str, tuple[Operation, Handler]], *, access: AccessRules) -> None:
        self._operations = dict(operations)
        if "GET" in operations:
            self._operations["HEAD"] = operations["GET"]
        self._allow = {"Allow": ", ".join(sorted({*self._operations, "OPTIONS"}))}
        self._access = access
        self._unauthenticated = any(one.unauthenticated for one, _ in operations.values())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response: ASGIApp
        try:
            self._authorize(request)
            if request.method == "OPTIONS":
                response = Response(status_code=204, headers=responses.HEADERS | self._allow)
            elif request.method not in self._operations:
                detail = f"This path does not support {request.method}."
                response = ProblemError(405, detail, headers=self._allow).response()
            else:
                operation, handler = self._operations[request.method]
                response = await handler(request, _parse_parameters(operation, request))
        except ProblemError as problem:
            response = problem.response()
        except responses.BackendError as error:
            response = responses.backend_problem(error).response()
        except Exception as error:
            await (await internal_error(request, error))(scope, receive, send)
            raise
        await response(scope, receive, send)

    def _authorize(self, request: Request) -> None:
        if not self._unauthenticated:
            self._access.authorize(request)
        elif self._access.everyone:
            count_authenticated(request)


class DirectPaths:
    """An application that serves *endpoints* by path without a search for the route, and the rest with *others*."""

    def __init__(self, endpoints: Mapping[str, ASGIApp], others: ASGIApp) -> None:
        self._endpoints, self._others = endpoints, others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._endpoints.get(scope.get("path", ""), self._others)(scope, receive, send)


async def not_found(request: Request, error: Exception) -> Response:
    del error
    return ProblemError(404, f"There is no {request.url.path}; see /openapi.json for the API.").response()


async def internal_error(request: Request, error: Exception) -> Response:
    _log.error("%s %s failed: %s", request.method, request.url.path, type(error).__name__)
    return ProblemError(500, "Internal error; see the log of the agent.").response()


def _parse_parameters(operation: Operation, request: Request) -> ParameterValues:
    """Return the parameter values; the problem names every unknown, repeated or invalid parameter."""
    if not request.scope.get("query_string") and not request.path_params:
        return operation.defaults
    problems: list[Problem] = []
    texts: dict[str, str] = {name: str(value) for name, value in request.path_params.items()}
    known = {one.name for one in operation.parameters if not one.in_path}
    query = request.url.query if request.scope.get("query_string") else ""  # request.url is slow to build
    for name, text in parse_qsl(query, keep_blank_values=True):
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


async def receive_pod(
    request: Request, read_pod: ReadPod, read_json_pod: ReadJsonPod, *, limit: int, seconds: float
) -> Pod:
    """Return the pod in the body; usual ones in JSON are read at once, others in a thread."""
    content = await receive_body(request, limit=limit, seconds=seconds)
    try:
        if len(content) <= _INLINE_BYTES and (pod := read_json_pod(content)) is not None:
            return pod
        return await asyncio.to_thread(read_pod, content)  # a small YAML document can expand to a huge one
    except PodError:
        raise
    except (ParseError, UnicodeDecodeError, RecursionError) as error:
        detail = f"The document is not valid JSON or YAML: {error}"
        raise ProblemError(400, detail, errors=[Problem("", str(error))]) from error
    except AlignError as error:
        raise ProblemError(422, str(error), errors=[Problem("", str(error))]) from error


async def receive_body(
    request: Request,
    *,
    limit: int,
    seconds: float,
    types: Collection[str] = responses.MANIFEST_TYPES,
    expected: str = f"{responses.JSON} or {responses.YAML}",
) -> bytes:
    """Return the body, of at most *limit* bytes; its type must be one of *types*, described as *expected*."""
    headers = dict(reversed(request.scope["headers"]))  # of several with one name, the first counts
    content_type = headers.get(b"content-type", b"").decode("latin-1")
    if content_type not in types:  # most clients send no parameters
        _check_content_type(content_type, types, expected=expected)
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise _unsupported("Content-Encoding", "is not supported")
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length[:20]) > limit:
        raise _too_large(limit)
    try:
        async with asyncio.timeout(seconds):
            return await _collect(request, limit)
    except TimeoutError:
        raise ProblemError(408, f"The document did not arrive within {seconds:g} seconds.", headers=_CLOSE) from None
    except ClientDisconnect:
        raise ProblemError(400, "The connection closed before the end of the document.", headers=_CLOSE) from None


async def _collect(request: Request, limit: int) -> bytes:
    body, more = bytearray(), True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


def _check_content_type(value: str, types: Collection[str], *, expected: str) -> None:
    header = Message()
    header["content-type"] = value
    if not value or header.get_content_type() not in types:
        raise _unsupported("Content-Type", f"must be {expected}")
    if str(header.get_param("charset", "utf-8")).lower() not in {"utf-8", "utf8", "us-ascii"}:
        raise _unsupported("Content-Type", "must have the charset utf-8")


def _too_large(limit: int) -> ProblemError:
    return ProblemError(413, f"The document is larger than {limit} bytes.", headers=_CLOSE)


def _unsupported(header: str, what: str) -> ProblemError:
    problem = Problem(header, what)
    return ProblemError(415, f"Unsupported document: {problem}.", errors=[problem], headers=_CLOSE)
