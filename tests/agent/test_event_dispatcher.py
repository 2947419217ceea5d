"""The log lines of the agent's events."""

import asyncio
import io
import json

from alignup.agent.event_dispatcher import EventDispatcher
from alignup.agent.metrics import Metrics
from alignup.agent.transaction import Transaction
from alignup.web.event_streams import EventBus
from alignup.web.log import make_logger
from tests.agent.states import clock, empty_state
from tests.align.hosts import pod


def events(*, readable: bool) -> str:
    """The log of an admission, a rejection and a release."""
    transaction = Transaction(empty_state(), clock())
    transaction.admit(pod("a", cpu="3"))
    transaction.admit(pod("b", cpu="9"))
    transaction.release("a")
    out = io.StringIO()
    metrics, bus = Metrics(lambda: transaction.state().host), EventBus(now=clock().now)
    loop = asyncio.new_event_loop()
    loop.close()
    ids = {id(event): number for number, event in enumerate(transaction.events, start=7) if event.decision}
    log = make_logger(out, readable=readable)
    EventDispatcher(loop, log, metrics, bus, lambda event: ids[id(event)], "host-a")(transaction.events)
    return out.getvalue()


def test_in_json_every_line_is_a_document():
    admitted, rejected, released = map(json.loads, events(readable=False).splitlines())

    assert (admitted["event"], admitted["level"], admitted["pod"]) == ("admitted", "info", "default/a")
    assert admitted["placed"] == "app on {0}: CPUs 1-3 · 1Gi memory on NUMA node 0"
    assert (rejected["event"], rejected["level"]) == ("rejected", "warning")
    assert rejected["reason"] == "TopologyAffinityError"
    assert (released["event"], released["uid"], released["source"]) == ("released", "a", "api")
    assert [line.get("decision") for line in (admitted, rejected, released)] == [7, 8, None]
    assert {line["node"] for line in (admitted, rejected, released)} == {"host-a"}
    assert all(line["timestamp"].endswith("Z") for line in (admitted, rejected, released))


def test_in_readable_form_every_event_is_one_line():
    lines = events(readable=True).splitlines()

    assert len(lines) == 3
    assert "default/a" in lines[0]
    assert "TopologyAffinityError" in lines[1]
