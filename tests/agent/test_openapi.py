"""The API is tested against its OpenAPI document, with valid and invalid data."""

import re

import pytest
from hypothesis import HealthCheck, settings

from alignup.agent import routes
from alignup.web.api_operations import Operation
from tests.agent.fake_backend import FakeBackend, app_of
from tests.effort import SOAK, did, examples

OPERATIONS = [value for value in vars(routes).values() if isinstance(value, Operation)]
#: A schema cannot express all rules (unique container names, requests within limits).
ACCEPTED = ["2xx", "404", "409", "422"]
#: Nor which texts are tokens of pages.
WITH_TOKEN = {"include-operation-id": "listPods"}


def expecting(*statuses: str) -> dict:
    return {"checks": {"positive_data_acceptance": {"expected-statuses": [*statuses]}}}


@pytest.fixture(scope="module")
def api_schema():
    import schemathesis  # noqa: PLC0415 - slow to import

    config = expecting(*ACCEPTED) | {"operations": [WITH_TOKEN | expecting("2xx", "400", "410")]}
    return schemathesis.openapi.from_asgi(
        "/openapi.json", app_of(FakeBackend()), config=schemathesis.Config.from_dict(config)
    )


@settings(max_examples=examples(20), suppress_health_check=list(HealthCheck), deadline=None)
def call_and_validate(case):
    case.call_and_validate()
    did("requests generated from the OpenAPI document")


# A stream of events has no end, and is tried elsewhere. The document itself is what Schemathesis reads.
LABELS = [
    f"{operation.method} {operation.path}"
    for operation in OPERATIONS
    if operation.path not in {"/v1/events", "/openapi.json"}
]


@pytest.mark.soak
@pytest.mark.parametrize("labels", [[label] for label in LABELS] if SOAK else [LABELS])  # the library is slow to import
def test_responses_match_the_description(labels, api_schema):
    from schemathesis.core.result import Ok  # noqa: PLC0415 - see above
    from schemathesis.pytest.lazy import get_all_tests  # noqa: PLC0415

    operations = api_schema.exclude(lambda context: context.operation.label not in labels)
    # Schemathesis' decorator generates the requests while tests are collected, in every worker. This does it here.
    tests = list(get_all_tests(schema=operations, test_func=call_and_validate, settings=None, given_kwargs=None))
    assert len(tests) == len(labels)
    for generated in tests:
        assert isinstance(generated, Ok), generated
        _, test = generated.ok()
        test()


def test_every_operation_is_described(api_schema):
    described = {
        (path, method.upper()) for path, methods in api_schema.raw_schema["paths"].items() for method in methods
    }

    assert described == {(operation.path, operation.method) for operation in OPERATIONS}


def test_every_path_parameter_is_described():
    for operation in OPERATIONS:
        assert re.findall(r"{(\w+)}", operation.path) == [
            parameter.name for parameter in operation.parameters if parameter.in_path
        ]
