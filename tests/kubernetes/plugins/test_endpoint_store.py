"""The endpoint store: any sequence of plugins that connect, list devices and disconnect."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from alignup.align.errors import PluginError
from alignup.align.machine import Device
from alignup.kubernetes.plugins.endpoint import Endpoint, PluginTimeouts
from alignup.kubernetes.plugins.resources import UNKNOWN_RESOURCE, EndpointStore, ResourceState, ResourceStatus
from alignup.wire import device_plugin_pb2 as wire
from tests.effort import examples
from tests.kubernetes.plugins.capacity import capacity_of

GPU = "example.com/gpu"
GRACE = 300.0
NO_CHANNEL: Any = None


def endpoint(socket="a.sock", *, preferred=False):
    """Return an endpoint that is never called, so it needs no channel."""
    options = wire.DevicePluginOptions(get_preferred_allocation_available=preferred)
    return Endpoint(GPU, Path(socket), NO_CHANNEL, PluginTimeouts(), options)


def devices(count, *, healthy=True):
    return tuple(Device(GPU, f"gpu-{number}", 1, healthy=healthy) for number in range(count))


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def changes():
    return []


@pytest.fixture
def store(clock, changes):
    return EndpointStore(now=lambda: clock[0], changed=changes.append, grace=GRACE)


def test_a_plugin_that_never_lists_devices_is_not_reported(store, changes):
    silent = endpoint()
    store.connect(silent)
    assert store.status(GPU) == ResourceStatus(state=ResourceState.STOPPED)
    assert capacity_of(store).capacity == {}
    changes.clear()

    store.disconnect(silent)

    assert store.status(GPU) == UNKNOWN_RESOURCE
    assert changes == []


def test_a_plugin_that_came_back_is_unhealthy_until_it_lists(store):
    first = endpoint()
    store.connect(first)
    store.list(first, devices(2))
    store.disconnect(first)
    second = endpoint()

    store.connect(second)
    assert store.status(GPU) == ResourceStatus(state=ResourceState.STOPPED, devices=devices(2, healthy=False))
    assert store.primary(GPU) is second
    store.list(second, devices(3))

    assert store.status(GPU) == ResourceStatus(state=ResourceState.SERVED, devices=devices(3))


def test_a_replaced_endpoint_is_ignored(store, changes):
    old, new = endpoint(), endpoint(preferred=True)
    store.connect(old)
    store.list(old, devices(2))

    assert store.connect(new) is old
    changes.clear()
    store.list(old, devices(5))
    store.disconnect(old)

    assert store.status(GPU) == ResourceStatus(
        state=ResourceState.SERVED, devices=devices(2), preferred_allocation=True
    )
    assert changes == []


def test_an_expected_plugin_that_disconnects_gets_a_new_grace_period(store, clock):
    store.expect([GPU])
    clock[0] = GRACE
    came = endpoint()
    store.connect(came)
    store.disconnect(came)
    clock[0] = 1.5 * GRACE

    assert capacity_of(store).capacity == {GPU: 0}
    clock[0] = 2.5 * GRACE
    assert capacity_of(store).deleted == (GPU,)


def test_the_primary_of_a_stopped_resource_is_an_error(store):
    assert store.primary(GPU) is None
    gone = endpoint()
    store.connect(gone)
    store.list(gone, ())
    store.disconnect(gone)

    with pytest.raises(PluginError, match=r"endpoint example.com/gpu at a.sock has been stopped"):
        store.primary(GPU)


class PluginLifecycles(RuleBasedStateMachine):
    """Plugins connect at three sockets and disconnect; a simple model checks the store."""

    def __init__(self):
        super().__init__()
        self.time = 0.0
        self.seen = UNKNOWN_RESOURCE  #: at the last notification
        self.store = EndpointStore(now=lambda: self.time, changed=self.record, grace=GRACE)
        self.connected = []  #: oldest first
        self.lists = {}  #: endpoint → its devices, if it has listed any
        self.last = None  #: the current device list
        self.since = None  #: when the last endpoint disconnected

    def record(self, resource):
        self.seen = self.store.status(resource)

    @rule(socket=st.sampled_from("abc"), preferred=st.booleans())
    def added(self, socket, preferred):
        added = endpoint(socket, preferred=preferred)
        replaced = self.store.connect(added)
        assert replaced is next((old for old in self.connected if old.socket == added.socket), None)
        self.connected = [old for old in self.connected if old is not replaced] + [added]
        if replaced in self.lists:
            self.lists[added] = self.lists.pop(replaced)
        self.since = None
        self.choose()

    @precondition(lambda self: self.connected)
    @rule(data=st.data(), count=st.integers(0, 3))
    def list(self, data, count):
        listing = data.draw(st.sampled_from(self.connected))
        self.store.list(listing, devices(count))
        self.lists[listing] = devices(count)
        self.choose()

    @precondition(lambda self: self.connected)
    @rule(data=st.data())
    def disconnect(self, data):
        gone = data.draw(st.sampled_from(self.connected))
        self.store.disconnect(gone)
        self.connected.remove(gone)
        self.lists.pop(gone, None)
        self.choose()
        if not self.connected:
            self.since = self.time

    def choose(self):
        """The devices of the latest endpoint that has listed some, or the last devices, all unhealthy."""
        serving = self.serving()
        if serving is not None:
            self.last = self.lists[serving]
        elif self.last is not None:
            self.last = devices(len(self.last), healthy=False)

    def serving(self):
        return next((connection for connection in reversed(self.connected) if connection in self.lists), None)

    @rule(seconds=st.sampled_from([1.0, GRACE, 1.5 * GRACE]))
    def wait(self, seconds):
        self.time += seconds
        late = self.since is not None and self.last is not None and self.time - self.since > GRACE
        assert self.store.expire() == ((GPU,) if late else ())
        if late:
            self.last = self.since = None

    @invariant()
    def matches_the_model(self):
        counts = capacity_of(self.store)
        known = {} if self.last is None else {GPU: self.last}
        assert counts.capacity == {name: len(listed) for name, listed in known.items()}
        assert counts.allocatable == {name: sum(device.healthy for device in listed) for name, listed in known.items()}
        if self.connected:
            assert self.store.primary(GPU) is (self.serving() or self.connected[-1])

    @invariant()
    def every_change_is_notified(self):
        view = self.store.status(GPU)
        if view.devices is not None or self.seen.devices is not None:
            assert view == self.seen


@pytest.mark.soak
def test_any_sequence_of_events():
    run_state_machine_as_test(PluginLifecycles, settings=settings(max_examples=examples(50)))
