"""What the log says of what happened."""

import io
import json

import pytest

from alignup.agent import log
from alignup.agent.transaction import Transaction
from tests.agent.states import clock, empty_state
from tests.align.hosts import pod


def told(*, readable: bool) -> str:
    """The log of a pod that is admitted, one that is refused, and a release."""
    draft = Transaction(empty_state(), clock())
    draft.admit(pod("a", cpu="3"))
    draft.admit(pod("b", cpu="9"))
    draft.release("a")
    out = io.StringIO()
    made = log.make_logger(out, readable=readable)
    for happening in draft.events:
        log.log_event(made, happening)
    return out.getvalue()


def test_as_json_every_line_is_a_document():
    admitted, refused, released = map(json.loads, told(readable=False).splitlines())

    assert (admitted["event"], admitted["level"], admitted["pod"]) == ("admitted", "info", "default/a")
    assert admitted["placed"] == "app on {0}: CPUs 1-3 · 1Gi memory on NUMA node 0"
    assert (refused["event"], refused["level"], refused["reason"]) == ("rejected", "warning", "TopologyAffinityError")
    assert (released["event"], released["uid"], released["source"]) == ("released", "a", "api")
    assert all(line["timestamp"].endswith("Z") for line in (admitted, refused, released))


def test_for_people_every_happening_is_one_line():
    lines = told(readable=True).splitlines()

    assert len(lines) == 3
    assert "default/a" in lines[0]
    assert "TopologyAffinityError" in lines[1]


@pytest.mark.parametrize("readable", [True, False])
def test_what_a_name_holds_cannot_end_a_line(readable):
    out = io.StringIO()

    log.make_logger(out, readable=readable).warning("manifest", detail="a\nb\x1b[2Jc")

    assert len(out.getvalue().splitlines()) == 1
    assert "\x1b[2J" not in out.getvalue()
