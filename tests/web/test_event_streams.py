"""Every subscriber gets every event, or the number of missed ones."""

import asyncio
import itertools
import json
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.documents.codec import timestamp
from alignup.web import event_streams
from alignup.web.event_streams import MISSED, EventBus
from tests.deadlines import SECONDS

pytestmark = pytest.mark.anyio


def new_bus(capacity=3):
    return EventBus(now=itertools.count(100).__next__, capacity=capacity)


async def take(subscription):
    """Return all new events, at least one."""
    async with asyncio.timeout(SECONDS):
        while not (text := subscription.take_text()):
            await subscription.wait(SECONDS)
    return [json.loads(line.removeprefix(b"data: ")) for line in text.splitlines() if line.startswith(b"data: ")]


async def test_all_subscribers_get_events_from_now_on():
    bus = new_bus()
    bus.publish("early", {})
    async with bus.subscribe() as first, bus.subscribe() as other:
        bus.publish("admitted", {"uid": "a"})
        bus.publish("released", {"uid": "a"})

        received, also_received = await take(first), await take(other)

    assert bus.subscribers == 0
    assert (
        received
        == also_received
        == [
            {"id": 2, "time": timestamp(101), "kind": "admitted", "detail": {"uid": "a"}},
            {"id": 3, "time": timestamp(102), "kind": "released", "detail": {"uid": "a"}},
        ]
    )


@given(steps=st.lists(st.one_of(st.just("read"), st.integers(1, 8)), max_size=12), capacity=st.integers(1, 4))
def test_every_event_is_delivered_or_counted_as_missed(steps, capacity):
    """At any pace, IDs increase, no event is delivered twice, and the missed ones add up."""

    async def listen():
        bus = new_bus(capacity)
        received: list[int] = []
        missed = published = last = 0
        async with bus.subscribe() as events:
            for step in [*steps, "read"]:
                if step == "read" and (published > len(received) + missed):
                    for event in await take(events):
                        assert event["id"] > last
                        last = event["id"]
                        missed += event["detail"]["count"] if event["kind"] == MISSED else 0
                        received += [event["id"]] if event["kind"] != MISSED else []
                elif step != "read":
                    for _ in range(step):
                        published += 1
                        bus.publish("something", {})
        assert received == sorted(set(received))
        assert len(received) + missed == published

    asyncio.run(listen())


async def test_an_event_is_encoded_once_for_all_streams(monkeypatch):
    encoded = []
    encode = event_streams.encode_event

    def counted(event):
        encoded.append(event.id)
        return encode(event)

    monkeypatch.setattr(event_streams, "encode_event", counted)
    bus = new_bus()
    async with AsyncExitStack() as stack:
        subscriptions = [await stack.enter_async_context(bus.subscribe()) for _ in range(50)]
        bus.publish("admitted", {})
        bus.publish("released", {})

        texts = {subscription.take_text() for subscription in subscriptions}

    assert len(texts) == 1
    assert encoded == [1, 2]


async def test_many_subscribers_are_resumed_in_groups():
    bus = new_bus()
    resumed: list[int] = []

    async def listen(subscription):
        while not subscription.take_text():
            await subscription.wait(SECONDS)
        resumed.append(1)

    async with AsyncExitStack() as stack:
        subscriptions = [await stack.enter_async_context(bus.subscribe()) for _ in range(100)]
        listeners = [asyncio.ensure_future(listen(listener)) for listener in subscriptions]
        await asyncio.sleep(0)
        bus.publish("admitted", {})
        await asyncio.sleep(0)
        at_once = len(resumed)
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*listeners)

    assert 0 < at_once < 50
    assert len(resumed) == 100
