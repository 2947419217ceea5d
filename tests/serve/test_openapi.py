"""The API is tested against its OpenAPI document, with valid and invalid data."""

import re

import schemathesis
from hypothesis import HealthCheck, settings

from alignup.serve.routes import OPERATIONS
from tests.effort import examples
from tests.serve.fake_backend import FakeBackend, app_of

#: A schema cannot express all rules (unique container names, requests within limits).
ACCEPTED = ["2xx", "404", "409", "422"]
#: Nor which texts are tokens of pages.
WITH_TOKEN = {"include-operation-id": "listPods"}


def expecting(*statuses: str) -> dict:
    return {"checks": {"positive_data_acceptance": {"expected-statuses": [*statuses]}}}


CONFIG = schemathesis.Config.from_dict(
    expecting(*ACCEPTED) | {"operations": [WITH_TOKEN | expecting("2xx", "400", "410")]}
)

schema = schemathesis.openapi.from_asgi("/openapi.json", app_of(FakeBackend()), config=CONFIG)


# A stream of events has no end, and is tried elsewhere.
@schema.exclude(path="/v1/events").parametrize()
@settings(max_examples=examples(20), suppress_health_check=list(HealthCheck), deadline=None)
def test_responses_match_the_description(case):
    case.call_and_validate()


def test_every_operation_is_described():
    described = {(path, method.upper()) for path, methods in schema.raw_schema["paths"].items() for method in methods}

    assert described == {(one.path, one.method) for one in OPERATIONS}


def test_every_path_parameter_is_described():
    for one in OPERATIONS:
        assert re.findall(r"{(\w+)}", one.path) == [parameter.name for parameter in one.parameters if parameter.in_path]
