"""The OpenAPI 3.1 document of the API, made from the same table as its routes."""

from typing import Any

from alignup.serve.openapi_schemas import SCHEMAS, TEXT, ref
from alignup.serve.request_body import MEDIA_TYPES
from alignup.serve.responses import PROBLEM
from alignup.serve.routes import OPERATIONS, Operation, Parameter, SuccessResponse

_BEARER = "token"
_STRAY = "A parameter is unknown, there twice, or not what it should be; or the document cannot be read."
_NO_TOKEN = "The token is missing or wrong."  # noqa: S105 - a sentence


def openapi_document(*, version: str, with_token: bool) -> dict[str, Any]:
    """The document; *with_token*: as on an address where a token is asked for."""
    paths: dict[str, dict[str, Any]] = {}
    for one in OPERATIONS:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, with_token=with_token)
    components: dict[str, Any] = {"schemas": dict(SCHEMAS)}
    if with_token:
        components["securitySchemes"] = {_BEARER: {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "alignup",
            "version": version,
            "description": "Pods on the NUMA nodes, CPUs, memory and devices of one machine, and why they are where.",
        },
        "paths": paths,
        "components": components,
    }


def _operation(one: Operation, *, with_token: bool) -> dict[str, Any]:
    problems = dict(one.problems) | ({400: _STRAY} if one.strict else {})
    guarded = with_token and not one.open
    if guarded:
        problems[401] = _NO_TOKEN
    answers = {str(status): _answer(answer) for status, answer in one.answers.items()}
    answers |= {str(status): _problem(status, says) for status, says in problems.items()}
    found: dict[str, Any] = {
        "operationId": one.id,
        "summary": one.says,
        "parameters": [_parameter(parameter) for parameter in one.parameters],
        "responses": dict(sorted(answers.items())),
        "security": [{_BEARER: []}] if guarded else [],
    }
    if one.more:
        found["description"] = one.more
    if one.takes_pod:
        schema = {"schema": ref("Manifest")}
        found["requestBody"] = {"required": True, "content": dict.fromkeys(MEDIA_TYPES, schema)}
    return found


def _parameter(one: Parameter) -> dict[str, Any]:
    return {
        "name": one.name,
        "in": "path" if one.in_path else "query",
        "description": one.says,
        "required": one.in_path,
        "schema": one.schema(),
    }


def _answer(answer: SuccessResponse) -> dict[str, Any]:
    schema = TEXT if answer.schema is None else ref(answer.schema)
    return {"description": answer.says, "content": {answer.media_type: {"schema": schema}}}


def _problem(status: int, says: str) -> dict[str, Any]:
    schema = ref("Refused") if status == 409 else ref("Problem")
    return {"description": says, "content": {PROBLEM: {"schema": schema}}}
