"""The pods of requests."""

import json

from alignup.agent.service import read_pod
from tests.agent.agents import pod


def test_a_pod_without_a_uid_gets_one_derived_from_its_name():
    document = pod("web")
    del document["metadata"]["uid"]
    content = json.dumps(document).encode()

    assert read_pod(content).uid == read_pod(content).uid != ""
