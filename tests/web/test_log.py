"""The log lines of events."""

import io
import json
import subprocess
import sys

import pytest

from alignup.agent.transaction import Transaction
from alignup.web import log
from tests.agent.states import clock, empty_state
from tests.align.hosts import pod


def events(*, readable: bool) -> str:
    """The log of an admission, a rejection and a release."""
    transaction = Transaction(empty_state(), clock())
    transaction.admit(pod("a", cpu="3"))
    transaction.admit(pod("b", cpu="9"))
    transaction.release("a")
    out = io.StringIO()
    logger = log.make_logger(out, readable=readable)
    for event in transaction.events:
        log.log_event(logger, event)
    return out.getvalue()


def test_in_json_every_line_is_a_document():
    admitted, rejected, released = map(json.loads, events(readable=False).splitlines())

    assert (admitted["event"], admitted["level"], admitted["pod"]) == ("admitted", "info", "default/a")
    assert admitted["placed"] == "app on {0}: CPUs 1-3 · 1Gi memory on NUMA node 0"
    assert (rejected["event"], rejected["level"]) == ("rejected", "warning")
    assert rejected["reason"] == "TopologyAffinityError"
    assert (released["event"], released["uid"], released["source"]) == ("released", "a", "api")
    assert all(line["timestamp"].endswith("Z") for line in (admitted, rejected, released))


def test_in_readable_form_every_event_is_one_line():
    lines = events(readable=True).splitlines()

    assert len(lines) == 3
    assert "default/a" in lines[0]
    assert "TopologyAffinityError" in lines[1]


@pytest.mark.parametrize("readable", [True, False])
def test_a_name_cannot_break_a_line(readable):
    out = io.StringIO()

    log.make_logger(out, readable=readable).warning("manifest", detail="a\nb\x1b[2Jc")

    assert len(out.getvalue().splitlines()) == 1
    assert "\x1b[2J" not in out.getvalue()


def test_the_agent_does_not_load_rich_but_others_can():
    program = (
        "import sys, alignup.agent.structlog_without_rich as before; before.import_structlog(); "
        "import alignup.agent.daemon; assert 'rich' not in sys.modules; import rich.console"
    )

    subprocess.run([sys.executable, "-c", program], check=True)  # noqa: S603 - our own
