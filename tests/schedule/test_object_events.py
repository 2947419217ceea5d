"""Events about pods: their names, and what happens after a failed write."""

import re
from dataclasses import replace

import pytest

from alignup.documents.codec import convert, timestamp
from alignup.kubernetes.api import ApiClient
from alignup.kubernetes.api.objects import ApiPod
from alignup.schedule import object_events
from alignup.schedule.metrics import ScheduleMetrics
from alignup.schedule.object_events import REPEAT_SECONDS, ObjectEvents
from alignup.schedule.step_guard import StepGuard
from alignup.testing.api_server import ApiFault
from tests.align.hosts import pod
from tests.deadlines import until
from tests.observe.api_objects import api_pod

pytestmark = pytest.mark.anyio

SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"


@pytest.fixture
async def events(client, follow):
    made = ObjectEvents(client, "test", StepGuard(ScheduleMetrics(), client.timing).reporting)
    follow(made.run())
    return made


def named(name):
    return convert(api_pod(pod(name), phase="Pending"), ApiPod)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("p", id="short"),
        pytest.param("p" * 239, id="as long as fits"),
        pytest.param("p" * 253, id="the longest"),
        pytest.param("p" * 230 + ".-" + "-" * 7 + "x" * 14, id="with a separator at the end of what fits"),
    ],
)
async def test_an_event_has_a_valid_name_and_the_full_name_of_its_pod(server, events, name):
    events.note(named(name), "NoNode", "no room")
    await until(lambda: server.objects("events"))

    (event,) = server.objects("events")
    assert event["involvedObject"]["name"] == name
    assert len(event["metadata"]["name"]) <= 253
    assert re.fullmatch(SUBDOMAIN, event["metadata"]["name"])
    assert event["metadata"]["name"].startswith(name[:230])


async def test_a_failed_write_does_not_keep_the_same_event_back(server, events, log):
    asked = named("p")
    server.inject(ApiFault(status=403), verb="create", resource="events")
    events.note(asked, "NoNode", "no room")
    await until(lambda: [entry for entry in log if entry["event"] == "cannot write an event"])
    assert server.objects("events") == []

    events.note(asked, "NoNode", "no room")
    await until(lambda: server.objects("events"))
    (event,) = server.objects("events")
    assert (event["message"], event["count"]) == ("no room", 1)


async def test_an_event_that_cannot_be_made_is_counted_and_keeps_none_back(server, client, follow, log, monkeypatch):
    tries = iter((False, True, True, True))
    monkeypatch.setattr(
        object_events, "timestamp", lambda *time, **form: timestamp(*time, **form) if next(tries) else 1 / 0
    )
    metrics = ScheduleMetrics()
    events = ObjectEvents(client, "test", StepGuard(metrics, client.timing).reporting)
    follow(events.run())
    for name in "pq":
        events.note(named(name), "NoNode", "no room")
    await until(lambda: server.objects("events"))

    assert [event["involvedObject"]["name"] for event in server.objects("events")] == ["q"]
    assert metrics.registry.get_sample_value("alignup_schedule_failed_steps_total", {"step": "report"}) == 1
    assert [entry["name"] for entry in log if entry["event"] == "step failed"] == ["event about default/p"]


async def test_a_failed_write_does_not_keep_the_event_of_another_pod_back(server, events):
    server.inject(ApiFault(status=403), verb="create", resource="events")
    for name in "pq":
        events.note(named(name), "NoNode", "no room")
    await until(lambda: server.objects("events"))
    assert [event["involvedObject"]["name"] for event in server.objects("events")] == ["q"]


async def test_the_same_event_is_counted_and_a_failure_in_between_does_not_matter(server, client, follow, log):
    now = [0.0]
    timed = replace(client.timing, clock=lambda: now[0])
    async with ApiClient(client.access, timing=timed) as clocked:
        events = ObjectEvents(clocked, "test", StepGuard(ScheduleMetrics(), clocked.timing).reporting)
        running = follow(events.run())
        asked = named("p")
        events.note(asked, "NoNode", "no room")
        await until(lambda: server.objects("events"))
        events.note(asked, "NoNode", "no room")
        assert events.waiting == 0  # the last one is not old
        server.inject(ApiFault(status=403), verb="patch", resource="events")
        now[0] += REPEAT_SECONDS
        events.note(asked, "NoNode", "no room")
        await until(lambda: [entry for entry in log if entry["event"] == "cannot write an event"])
        events.note(asked, "NoNode", "no room")
        await until(lambda: [event["count"] for event in server.objects("events")] == [2])
        running.cancel()
