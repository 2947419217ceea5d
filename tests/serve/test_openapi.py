"""The description of the API tried against the API: each operation with data that fits it, and data that does not."""

import re

import schemathesis
from hypothesis import HealthCheck, settings

from alignup.serve.routes import OPERATIONS
from tests.serve.agents import Agent, app_of

EXAMPLES = 20

#: What else a pod has to be (no two containers of a name, requests within limits) no schema can say; such are a 422.
ACCEPTED = ["2xx", "404", "409", "422"]
CONFIG = schemathesis.Config.from_dict({"checks": {"positive_data_acceptance": {"expected-statuses": ACCEPTED}}})

schema = schemathesis.openapi.from_asgi("/openapi.json", app_of(Agent()), config=CONFIG)


# A stream of events has no end, and is tried elsewhere.
@schema.exclude(path="/v1/events").parametrize()
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)
def test_what_is_described_is_what_happens(case):
    case.call_and_validate()


def test_everything_that_can_be_asked_for_is_described():
    described = {(path, method.upper()) for path, methods in schema.raw_schema["paths"].items() for method in methods}

    assert described == {(one.path, one.method) for one in OPERATIONS}


def test_every_parameter_in_a_path_is_described():
    for one in OPERATIONS:
        assert re.findall(r"{(\w+)}", one.path) == [parameter.name for parameter in one.parameters if parameter.in_path]
