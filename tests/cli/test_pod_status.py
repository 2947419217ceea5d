"""Selecting pods by name, and the columns of ``alignup ps``."""

import pytest

from alignup.cli import pod_status
from alignup.cli.agent_client import AgentError
from alignup.cli.app import InputError


def pod(*, status="admitted", position=None):
    return {"uid": "u", "name": "web", "namespace": "shop", "status": status, "position": position}


@pytest.mark.parametrize(
    ("document", "status"),
    [
        pytest.param(pod(), "admitted", id="admitted"),
        pytest.param(pod(status="waiting", position=2), "waiting (2)", id="waiting"),
    ],
)
def test_the_status_has_the_position_in_the_queue(document, status):
    assert pod_status.status(document) == status


@pytest.mark.parametrize("name", ["u", "web", "shop/web"])
def test_a_pod_is_found_by_any_of_its_names(name):
    assert pod_status.find_pod(name, [pod()])["uid"] == "u"


def test_a_name_must_match_exactly_one_pod():
    with pytest.raises(AgentError, match="pod shop not found"):
        pod_status.find_pod("shop", [pod()])
    with pytest.raises(InputError, match="matches 2 pods"):
        pod_status.find_pod("web", [pod(), pod() | {"uid": "v"}])
