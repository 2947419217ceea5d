"""Who serves what: any course of plugins that come, list their devices and go."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from alignup.align.errors import PluginError
from alignup.align.machine import Device
from alignup.plugins.endpoint import Endpoint, PluginOptions, PluginTimeouts
from alignup.plugins.endpoint_store import UNKNOWN_RESOURCE, EndpointStore, ResourceState, ResourceStatus

GPU = "example.com/gpu"
GRACE = 300.0
NO_LINE: Any = None


def endpoint(socket="a.sock", *, preferred=False):
    """One that is never called, so it needs no line."""
    made = Endpoint(GPU, Path(socket), channel=NO_LINE, timeouts=PluginTimeouts())
    made.options = PluginOptions(preferred_allocation=preferred)
    return made


def devices(count, *, healthy=True):
    return tuple(Device(GPU, f"gpu-{number}", 1, healthy=healthy) for number in range(count))


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def changes():
    return []


@pytest.fixture
def roster(clock, changes):
    return EndpointStore(now=lambda: clock[0], changed=changes.append, grace=GRACE)


def test_nothing_is_told_of_a_plugin_that_never_lists(roster, changes):
    mute = endpoint()
    roster.connect(mute)
    assert roster.status(GPU) == ResourceStatus(state=ResourceState.STOPPED)
    assert roster.capacity().capacity == {}
    changes.clear()

    roster.disconnect(mute)

    assert roster.status(GPU) == UNKNOWN_RESOURCE
    assert changes == []


def test_a_plugin_that_is_back_is_not_healthy_before_it_lists(roster):
    first = endpoint()
    roster.connect(first)
    roster.list(first, devices(2))
    roster.disconnect(first)
    second = endpoint()

    roster.connect(second)
    assert roster.status(GPU) == ResourceStatus(state=ResourceState.STOPPED, devices=devices(2, healthy=False))
    assert roster.primary(GPU) is second
    roster.list(second, devices(3))

    assert roster.status(GPU) == ResourceStatus(state=ResourceState.SERVED, devices=devices(3))


def test_a_plugin_that_is_back_in_time_has_all_the_time_to_list(roster, clock):
    first = endpoint()
    roster.connect(first)
    roster.list(first, devices(2))
    roster.disconnect(first)
    roster.connect(endpoint())
    clock[0] = 10 * GRACE

    assert roster.capacity().capacity == {GPU: 2}


def test_whoever_is_replaced_is_not_heard_any_more(roster, changes):
    old, new = endpoint(), endpoint(preferred=True)
    roster.connect(old)
    roster.list(old, devices(2))

    assert roster.connect(new) is old
    changes.clear()
    roster.list(old, devices(5))
    roster.disconnect(old)

    assert roster.status(GPU) == ResourceStatus(
        state=ResourceState.SERVED, devices=devices(2), preferred_allocation=True
    )
    assert changes == []


def test_one_that_was_expected_and_goes_at_once_has_its_time_again(roster, clock):
    roster.expect([GPU])
    clock[0] = GRACE
    came = endpoint()
    roster.connect(came)
    roster.disconnect(came)
    clock[0] = 1.5 * GRACE

    assert roster.capacity().capacity == {GPU: 0}
    clock[0] = 2.5 * GRACE
    assert roster.capacity().deleted == (GPU,)


def test_nobody_can_be_called_once_all_are_gone(roster):
    assert roster.primary(GPU) is None
    gone = endpoint()
    roster.connect(gone)
    roster.list(gone, ())
    roster.disconnect(gone)

    with pytest.raises(PluginError, match=r"endpoint example.com/gpu at a.sock has been stopped"):
        roster.primary(GPU)


class Comings(RuleBasedStateMachine):
    """Plugins come to three sockets and go; beside the roster, what the rules say."""

    def __init__(self):
        super().__init__()
        self.time = 0.0
        self.seen = UNKNOWN_RESOURCE  #: as of the last change that was told
        self.roster = EndpointStore(now=lambda: self.time, changed=self.hear, grace=GRACE)
        self.connected = []  #: in the order they came
        self.last = None  #: the list that counts
        self.since = None  #: when the last one left

    def hear(self, resource):
        self.seen = self.roster.status(resource)

    @rule(socket=st.sampled_from("abc"), preferred=st.booleans())
    def added(self, socket, preferred):
        one = endpoint(socket, preferred=preferred)
        replaced = self.roster.connect(one)
        assert replaced is next((old for old in self.connected if old.socket == one.socket), None)
        self.connected = [old for old in self.connected if old is not replaced] + [one]
        self.since = None

    @precondition(lambda self: self.connected)
    @rule(data=st.data(), count=st.integers(0, 3))
    def list(self, data, count):
        self.roster.list(data.draw(st.sampled_from(self.connected)), devices(count))
        self.last = devices(count)

    @precondition(lambda self: self.connected)
    @rule(data=st.data())
    def go(self, data):
        gone = data.draw(st.sampled_from(self.connected))
        self.roster.disconnect(gone)
        self.connected.remove(gone)
        if not self.connected:
            self.since = self.time
            self.last = None if self.last is None else devices(len(self.last), healthy=False)

    @rule(seconds=st.sampled_from([1.0, GRACE, 1.5 * GRACE]))
    def wait(self, seconds):
        self.time += seconds
        late = self.since is not None and self.last is not None and self.time - self.since > GRACE
        assert self.roster.expire() == ((GPU,) if late else ())
        if late:
            self.last = self.since = None

    @invariant()
    def as_the_rules_say(self):
        counts = self.roster.capacity()
        known = {} if self.last is None else {GPU: self.last}
        assert counts.capacity == {name: len(listed) for name, listed in known.items()}
        assert counts.allocatable == {name: sum(one.healthy for one in listed) for name, listed in known.items()}
        if self.connected:
            assert self.roster.primary(GPU) is self.connected[-1]

    @invariant()
    def every_change_is_told(self):
        view = self.roster.status(GPU)
        if view.devices is not None or self.seen.devices is not None:
            assert view == self.seen


def test_any_course_of_comings_and_goings():
    run_state_machine_as_test(Comings)
