"""Selecting pods by name, and the columns of ``alignup ps``."""

import pytest

from alignup.cli import pod_status
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
    with pytest.raises(InputError, match="pod shop not found") as missing:
        pod_status.find_pod("shop", [pod()])
    with pytest.raises(InputError, match="matches 2 pods") as ambiguous:
        pod_status.find_pod("web", [pod(), pod() | {"uid": "v"}])

    assert (missing.value.exit_code, ambiguous.value.exit_code) == (1, 2)


def test_each_numa_node_is_listed_once():
    placements = [{"hint": {"nodes": nodes}} for nodes in ("0", None, "1", "0")]

    assert pod_status.numa_nodes(placements) == "0,1"
    assert pod_status.numa_nodes([]) == "-"
