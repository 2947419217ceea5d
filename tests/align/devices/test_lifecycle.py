"""Pods, plugins and devices coming and going in any order: nothing is given twice, nothing is lost."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from alignup.align.devices.hints import CoverageFamily
from alignup.align.devices.ledger import DeviceLedger
from alignup.align.devices.provider import DeviceProvider, PreferenceAnswers
from alignup.align.errors import ProviderError
from alignup.align.hint import AmountFamily
from alignup.align.workload import Pod
from tests.align.devices.plain import GPU, NIC, Allocated, allocate, announcements, pod_of, wanting
from tests.effort import examples
from tests.strategies_hints import subsets_of

NODES = 0b111
counts = st.integers(0, 3)


@st.composite
def pods(draw: st.DrawFn, uid: str) -> Pod:
    """Init containers, sidecars and containers that want some of either resource."""
    kinds = [("init", False), ("proxy", True), ("late", False), ("app", False), ("side", False)]
    made = [
        wanting(name, sidecar=sidecar, gpu=draw(counts), nic=draw(counts))
        for name, sidecar in kinds
        if draw(st.booleans())
    ]
    init = [container for container in made if container.name in {"init", "proxy", "late"}]
    return pod_of(*(container for container in made if container not in init), init=init, uid=uid)


class Lifecycle(RuleBasedStateMachine):
    """A ledger that goes through admissions, removals and announcements, beside plain notes of who was given what."""

    @initialize()
    def start(self) -> None:
        self.ledger = DeviceLedger(nodes=NODES)
        self.given: dict[str, dict[str, set[str]]] = {}
        self.number = 0

    @rule(data=st.data(), resource=st.sampled_from([GPU, NIC]), asked=st.booleans())
    def announce(self, data: st.DataObject, resource: str, asked: bool) -> None:
        announced = data.draw(announcements(NODES, resource=resource))
        self.ledger = self.ledger.announce(resource, announced, preferred_allocation=asked)

    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        self.number += 1
        pod = data.draw(pods(f"pod-{self.number}"))
        before = self.ledger
        try:
            after = self.placed(pod, data)
        except ProviderError:
            assert self.ledger is before
            assert before.take_back(pod.uid) == before
            return
        self.given[pod.uid] = {name: set(after.owned(pod.uid, name)) for name in (GPU, NIC)}
        released = after.take_back(pod.uid)
        assert (released.held, released.in_use, released.free) == (before.held, before.in_use, before.free)
        self.ledger = after

    def placed(self, pod: Pod, data: st.DataObject) -> DeviceLedger:
        """The ledger with all containers of *pod* served, plugins answering as they please."""
        ledger = self.ledger
        answers: dict = {}
        for container in pod.all_containers:
            affinity = data.draw(st.none() | subsets_of(NODES))
            outcome = allocate(ledger, pod, container=container, affinity=affinity)
            if outcome.asks:
                assert outcome.ledger is ledger
                answers = {ask: data.draw(replies(ask.available)) for ask in outcome.asks}
                outcome = allocate(ledger, pod, container=container, affinity=affinity, answers=answers)
            assert not outcome.asks
            self.check_given(ledger, outcome, pod, answers)
            ledger = outcome.ledger
        return ledger

    def check_given(self, before: DeviceLedger, outcome: Allocated, pod: Pod, answers: PreferenceAnswers) -> None:
        """Only what was free and healthy is given, or what an init container of the pod left."""
        for resource, ids in outcome.devices.items():
            free = set(before.inventories[resource].names(before.free[resource]))
            assert set(ids) <= free | before.reusable_by(pod.uid).get(resource, set())
            assert len(set(ids)) == len(ids)
        for ask in answers:
            assert set(ask.must_include) <= set(ask.available)
            assert len(ask.must_include) < ask.size <= len(ask.available)

    @rule(data=st.data())
    @precondition(lambda self: self.given)
    def remove(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.given)))
        del self.given[uid]
        self.ledger = self.ledger.take_back(uid)

    @rule(data=st.data())
    def collect(self, data: st.DataObject) -> None:
        active = data.draw(st.sets(st.sampled_from(sorted(self.given)))) if self.given else set()
        self.given = {uid: devices for uid, devices in self.given.items() if uid in active}
        for uid in self.ledger.held.keys() - active:
            self.ledger = self.ledger.take_back(uid)

    @rule(resource=st.sampled_from([GPU, NIC]), forever=st.booleans())
    def lose_plugin(self, resource: str, forever: bool) -> None:
        if resource in self.ledger.inventories:
            self.ledger = self.ledger.give_up(resource) if forever else self.ledger.stop(resource)

    @invariant()
    def no_device_is_shared_or_lost(self) -> None:
        for resource in (GPU, NIC):
            held = [devices[resource] for devices in self.given.values()]
            together = set().union(*held)
            assert sum(map(len, held)) == len(together), "two pods hold the same device"
            assert self.ledger.in_use.get(resource, set()) == together
            assert (resource in self.ledger.in_use) == bool(together)
            if resource in self.ledger.inventories:
                inventory = self.ledger.inventories[resource]
                healthy = set(inventory.names(inventory.healthy))
                assert set(inventory.names(self.ledger.free[resource])) == healthy - together

    @invariant()
    def what_is_hinted_can_be_had(self) -> None:
        """Where a set of nodes is hinted for one container alone, allocating there gives only devices near it."""
        pod = pod_of(wanting(gpu=2), uid="visitor")
        family = DeviceProvider(NODES).hints(self.ledger, pod, pod.containers[0]).get(GPU)
        if not isinstance(family, AmountFamily | CoverageFamily):
            return
        ledger = self.ledger.announce(GPU, self.ledger.inventories[GPU].devices)
        for mask in family.fitting_sets():
            chosen = allocate(ledger, pod, container=pod.containers[0], affinity=mask).devices[GPU]
            assert not ledger.inventories[GPU].find(chosen) & ~ledger.inventories[GPU].near(mask)


def replies(available: tuple[str, ...]) -> st.SearchStrategy:
    """Good answers, odd ones, and errors."""
    ids = st.lists(st.sampled_from([*available, "bogus"]), max_size=6).map(tuple)
    return ids | ids | st.just("the plugin fell over")


TestLifecycle = Lifecycle.TestCase
TestLifecycle.settings = settings(max_examples=examples(40), stateful_step_count=20)
