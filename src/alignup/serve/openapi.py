"""The OpenAPI 3.1 document, generated from the route table and the response types."""

from typing import Any

from alignup.schema import codec
from alignup.schema.api import ManifestDocument, ProblemDocument, RejectionProblemDocument
from alignup.serve.responses import JSON, MANIFEST_TYPES, PROBLEM
from alignup.serve.routes import OPERATIONS, Operation

_TOKEN = "token"  # noqa: S105 - the name of the security scheme
_BAD_REQUEST = "A parameter is unknown, repeated or invalid, or the document cannot be parsed."
_UNAUTHORIZED = "The token is missing or wrong."


def openapi_document(*, version: str, with_token: bool) -> dict[str, Any]:
    """Describe the API; *with_token*: as served on an address that requires a token."""
    paths: dict[str, dict[str, Any]] = {}
    for one in OPERATIONS:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, with_token=with_token)
    types = {one.document for operation in OPERATIONS for one in operation.responses.values() if one.document}
    types |= {ManifestDocument, ProblemDocument, RejectionProblemDocument}
    components: dict[str, Any] = {"schemas": codec.json_schemas(sorted(types, key=lambda one: one.__name__))}
    if with_token:
        components["securitySchemes"] = {_TOKEN: {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "alignup",
            "version": version,
            "description": "Admit pods to the NUMA nodes, CPUs, memory and devices of one node, and explain why.",
        },
        "paths": paths,
        "components": components,
    }


def _operation(one: Operation, *, with_token: bool) -> dict[str, Any]:
    problems = dict(one.problems) | ({400: _BAD_REQUEST} if one.strict else {})
    secured = with_token and not one.unauthenticated
    if secured:
        problems[401] = _UNAUTHORIZED
    responses = {}
    for status, response in one.responses.items():
        schema = {"type": "object" if response.media_type == JSON else "string"}
        if response.document is not None:
            schema = _ref(response.document)
        responses[status] = {"description": response.summary, "content": {response.media_type: {"schema": schema}}}
    for status, description in problems.items():
        schema = _ref(RejectionProblemDocument if status == 409 else ProblemDocument)
        responses[status] = {"description": description, "content": {PROBLEM: {"schema": schema}}}
    found: dict[str, Any] = {
        "operationId": one.id,
        "summary": one.summary,
        "parameters": [
            {
                "name": parameter.name,
                "in": "path" if parameter.in_path else "query",
                "description": parameter.summary,
                "required": parameter.in_path,
                "schema": parameter.schema(),
            }
            for parameter in one.parameters
        ],
        "responses": {str(status): responses[status] for status in sorted(responses)},
        "security": [{_TOKEN: []}] if secured else [],
    }
    if one.description:
        found["description"] = one.description
    if one.takes_pod:
        manifest = {"schema": _ref(ManifestDocument)}
        found["requestBody"] = {"required": True, "content": dict.fromkeys(MANIFEST_TYPES, manifest)}
    return found


def _ref(document: type) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{document.__name__.removesuffix('Document')}"}
