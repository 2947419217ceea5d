"""The operations of an HTTP API: routes, parameters, request bodies, and the OpenAPI document, from one table.

A path answers ``HEAD`` like ``GET``; the server omits the body. It answers ``OPTIONS`` with the methods it supports.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from email.message import Message
from enum import StrEnum
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from alignup.align.errors import Problem
from alignup.documents import codec
from alignup.picture.text_format import format_size
from alignup.web import responses
from alignup.web.authentication import AccessRules, count_authenticated
from alignup.web.responses import CLOSE, JSON, PROBLEM, YAML, ProblemDocument, ProblemError

ParameterValues = Mapping[str, Any]  #: by name; parameters without a value or default are left out
Handler = Callable[[Request, ParameterValues], Awaitable[ASGIApp]]

MANIFEST_TYPES = (JSON, YAML, "application/x-yaml", "text/yaml", "text/x-yaml")
MAX_INTEGER = (1 << 63) - 1  #: the largest integer in SQLite
_MAX_LENGTH = 1024  #: characters of a text parameter
_TOKEN = "token"  # noqa: S105 - the name of the security scheme
_BAD_REQUEST = "A parameter is unknown, repeated or invalid, or the document cannot be parsed."
_UNAUTHORIZED = "The token is missing or wrong."


class ParameterType(StrEnum):
    """Named as in JSON Schema."""

    INTEGER = "integer"
    STRING = "string"
    BOOLEAN = "boolean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    name: str
    summary: str
    type: ParameterType = ParameterType.STRING
    in_path: bool = False
    choices: tuple[str, ...] = ()
    minimum: int = 1  #: of an integer, or of the length of a text
    maximum: int = _MAX_LENGTH
    default: int | bool | None = None

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": str(self.type)}
        if self.choices:
            schema["enum"] = list(self.choices)
        elif self.type is ParameterType.INTEGER:
            schema |= {"minimum": self.minimum, "maximum": self.maximum}
        elif self.type is ParameterType.STRING:
            schema |= {"minLength": self.minimum, "maxLength": self.maximum}
        return schema if self.default is None else schema | {"default": self.default}

    def parse(self, text: str) -> int | bool | str:
        """Return the value of *text*; the message of a ``ValueError`` is the accepted form."""
        if self.type is ParameterType.BOOLEAN:
            if text not in {"true", "false"}:
                raise ValueError("true or false")
            return text == "true"
        if self.type is ParameterType.INTEGER:
            digits = text.isascii() and text.isdigit() and len(text) <= len(str(self.maximum))
            if not digits or not self.minimum <= int(text) <= self.maximum:
                raise ValueError(f"an integer from {self.minimum} to {self.maximum}")
            return int(text)
        if self.choices and text not in self.choices:
            raise ValueError(" or ".join(self.choices))
        if not self.choices and not self.minimum <= len(text) <= self.maximum:
            raise ValueError(f"a text of {self.minimum} to {self.maximum} characters")
        return text


@dataclass(frozen=True, slots=True)
class SuccessResponse:
    summary: str
    document: type | None = None  #: ``None``: text, or JSON described elsewhere
    media_type: str = JSON


@dataclass(frozen=True, kw_only=True)
class Operation:
    id: str
    method: str = "GET"
    path: str
    summary: str
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    body: type | None = None  #: the schema of the manifest in the request body; ``None``: there is none
    responses: Mapping[int, SuccessResponse]
    problems: Mapping[int, str] = field(default_factory=dict)  #: status → description
    problem_types: Mapping[int, type] = field(default_factory=dict)  #: status → schema, if it is a special one
    strict: bool = True  #: whether unknown parameters are errors
    unauthenticated: bool = False  #: whether it needs no token

    @cached_property
    def defaults(self) -> Mapping[str, Any]:
        """The values of parameters that are not given."""
        return {parameter.name: parameter.default for parameter in self.parameters if parameter.default is not None}


class ApiEndpoint:
    """An ASGI application for one path; *operations* are by method."""

    def __init__(self, operations: Mapping[str, tuple[Operation, Handler]], *, access: AccessRules) -> None:
        self._operations = dict(operations)
        if "GET" in operations:
            self._operations["HEAD"] = operations["GET"]
        self._allow = {"Allow": ", ".join(sorted({*self._operations, "OPTIONS"}))}
        self._access = access
        self._unauthenticated = any(operation.unauthenticated for operation, _ in operations.values())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response: ASGIApp
        try:
            is_authenticated = self._access.everyone or (not self._unauthenticated and self._access.allows(request))
            if is_authenticated:
                count_authenticated(request)
            if not is_authenticated and not self._unauthenticated:
                detail = "The request needs a valid token: Authorization: Bearer TOKEN"
                response = ProblemError(401, detail, headers={"WWW-Authenticate": "Bearer"}).response()
            elif request.method == "OPTIONS":
                response = Response(status_code=204, headers=responses.HEADERS | self._allow)
            elif request.method not in self._operations:
                detail = f"This path does not support {request.method}."
                response = ProblemError(405, detail, headers=self._allow).response()
            else:
                operation, handler = self._operations[request.method]
                has_parameters = request.path_params or scope.get("query_string")
                parameters = _parse_parameters(operation, request) if has_parameters else operation.defaults
                response = await handler(request, parameters)
        except ProblemError as problem:
            response = problem.response()
        except responses.ServiceError as error:
            response = responses.service_problem(error).response()
        except Exception as error:
            await (await responses.internal_error(request, error))(scope, receive, send)
            raise
        await response(scope, receive, send)


def _parse_parameters(operation: Operation, request: Request) -> ParameterValues:
    """Return the parameter values; the problem names every unknown, repeated or invalid parameter."""
    problems: list[Problem] = []
    texts: dict[str, str] = {name: str(value) for name, value in request.path_params.items()}
    parameter_names = {parameter.name for parameter in operation.parameters if not parameter.in_path}
    query = request.url.query if request.scope.get("query_string") else ""  # request.url is slow to build
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name in parameter_names and name not in texts:
            texts[name] = text
        elif operation.strict:
            problems.append(
                Problem(name, "is given twice" if name in parameter_names else "is not a parameter of this path")
            )
    values: dict[str, Any] = {}
    for parameter in operation.parameters:
        if parameter.name not in texts:
            values |= {} if parameter.default is None else {parameter.name: parameter.default}
            continue
        try:
            values[parameter.name] = parameter.parse(texts[parameter.name])
        except ValueError as error:
            problems.append(Problem(parameter.name, f"must be {error}"))
    if problems:
        raise ProblemError(400, "; ".join(map(str, problems)), errors=problems)
    return values


async def receive_body(
    request: Request,
    *,
    limit: int,
    seconds: float,
    types: Collection[str] = MANIFEST_TYPES,
    expected: str = f"{JSON} or {YAML}",
) -> bytes:
    """Return the body, of at most *limit* bytes; its type must be one of *types*, described as *expected*."""
    headers = dict(reversed(request.scope["headers"]))  # of several with one name, the first counts
    content_type = headers.get(b"content-type", b"").decode("latin-1")
    if content_type not in types:  # most clients send no parameters
        _check_content_type(content_type, types, expectation=expected)
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise _unsupported("Content-Encoding", "is not supported")
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length[:20]) > limit:
        raise _too_large(limit)
    body, more = bytearray(), True
    try:
        async with asyncio.timeout(seconds):
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    break
                body += message.get("body", b"")
                more = message.get("more_body", False) and len(body) <= limit
    except TimeoutError:
        raise ProblemError(408, f"The document did not arrive within {seconds:g} seconds.", headers=CLOSE) from None
    if len(body) > limit:
        raise _too_large(limit)
    if more:
        raise ProblemError(400, "The connection closed before the end of the document.", headers=CLOSE)
    return bytes(body)


def _check_content_type(value: str, types: Collection[str], *, expectation: str) -> None:
    header = Message()
    header["content-type"] = value
    if not value or header.get_content_type() not in types:
        raise _unsupported("Content-Type", f"must be {expectation}")
    if str(header.get_param("charset", "utf-8")).lower() not in {"utf-8", "utf8", "us-ascii"}:
        raise _unsupported("Content-Type", "must have the charset utf-8")


def _too_large(limit: int) -> ProblemError:
    return ProblemError(413, f"The document is larger than {format_size(limit)}.", headers=CLOSE)


def _unsupported(header: str, reason: str) -> ProblemError:
    problem = Problem(header, reason)
    return ProblemError(415, f"Unsupported document: {problem}.", errors=[problem], headers=CLOSE)


def openapi_document(
    operations: Sequence[Operation], *, title: str, description: str, version: str, with_token: bool
) -> dict[str, Any]:
    """Describe an API in OpenAPI 3.1; *with_token*: as served on an address that requires a token."""
    paths: dict[str, dict[str, Any]] = {}
    types: set[type] = {ProblemDocument}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation, with_token=with_token)
        types |= {response.document for response in operation.responses.values() if response.document}
        types |= set(operation.problem_types.values())
        types |= {operation.body} if operation.body else set()
    schemas = codec.json_schemas(sorted(types, key=lambda type_: type_.__name__))
    components: dict[str, Any] = {"schemas": schemas}
    if with_token:
        components["securitySchemes"] = {_TOKEN: {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version, "description": description},
        "paths": paths,
        "components": components,
    }


def _describe(operation: Operation, *, with_token: bool) -> dict[str, Any]:
    problems = dict(operation.problems) | ({400: _BAD_REQUEST} if operation.strict else {})
    secured = with_token and not operation.unauthenticated
    if secured:
        problems[401] = _UNAUTHORIZED
    answers = {}
    for status, response in operation.responses.items():
        schema = {"type": "object" if response.media_type == JSON else "string"}
        if response.document is not None:
            schema = _ref(response.document)
        answers[status] = {"description": response.summary, "content": {response.media_type: {"schema": schema}}}
    for status, description in problems.items():
        schema = _ref(operation.problem_types.get(status, ProblemDocument))
        answers[status] = {"description": description, "content": {PROBLEM: {"schema": schema}}}
    document: dict[str, Any] = {
        "operationId": operation.id,
        "summary": operation.summary,
        "parameters": [
            {
                "name": parameter.name,
                "in": "path" if parameter.in_path else "query",
                "description": parameter.summary,
                "required": parameter.in_path,
                "schema": parameter.schema(),
            }
            for parameter in operation.parameters
        ],
        "responses": {str(status): answers[status] for status in sorted(answers)},
        "security": [{_TOKEN: []}] if secured else [],
    }
    if operation.description:
        document["description"] = operation.description
    if operation.body is not None:
        manifest = {"schema": _ref(operation.body)}
        document["requestBody"] = {"required": True, "content": dict.fromkeys(MANIFEST_TYPES, manifest)}
    return document


def _ref(document: type) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{document.__name__.removesuffix('Document')}"}
