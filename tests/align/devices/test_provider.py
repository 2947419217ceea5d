"""The device provider: hints, chosen devices, preference requests and errors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.devices.choices import DeviceChoices, Pool
from alignup.align.devices.ledger import DeviceLedger
from alignup.align.devices.plugin_rules import PluginRule, PluginRules
from alignup.align.devices.provider import (
    DeviceProvider,
    DeviceRequest,
    PreferenceRequest,
    by_affinity,
    possible_choices,
)
from alignup.align.errors import ProviderError
from alignup.align.machine import Device
from alignup.align.workload import Container, Pod
from tests.align.devices.plain import GPU, NIC, Allocated, allocate, gpus, ledger_of, machines, pod_of, shown, wanting
from tests.strategies_hints import subsets_of

PROVIDER = DeviceProvider(0b1111)
FOUR = ledger_of(gpus([0], [0], [1], [1]))
ASKED = ledger_of(gpus([0], [0], [1], [1]), asked=[GPU])
ONE = wanting(gpu=1)
#: A ledger without the plugin of a resource that a pod holds.
GONE = DeviceLedger(nodes=0b11).give("other", "app", devices={GPU: ["gpu-0"]})


def given_to(ledger: DeviceLedger, container: Container, **options) -> tuple[str, ...]:
    """The devices a container alone in its pod is given."""
    outcome = allocate(ledger, pod_of(container), container=container, **{"affinity": None, **options})
    return outcome.devices.get(GPU, ())


def admitted(ledger: DeviceLedger, pod: Pod, affinity=None) -> DeviceLedger:
    for container in pod.all_containers:
        ledger = allocate(ledger, pod, container=container, affinity=affinity).ledger
    return ledger


def rejected(ledger: DeviceLedger, container: Container, **options) -> str:
    with pytest.raises(ProviderError) as error:
        given_to(ledger, container, **options)
    assert error.value.message == f"Allocate failed due to {error.value}, which is unexpected"
    return str(error.value)


class TestHints:
    @pytest.mark.parametrize(
        ("ledger", "container", "hints"),
        [
            pytest.param(FOUR, wanting(), {}, id="no request"),
            pytest.param(FOUR, wanting(nic=1), {}, id="a resource that is not managed"),
            pytest.param(ledger_of(gpus(None, [])), ONE, {GPU: None}, id="no topology: no preference"),
            pytest.param(GONE, ONE, {GPU: None}, id="held by a pod, but without a plugin: no preference"),
            pytest.param(FOUR, wanting(gpu=5), {GPU: ()}, id="too few devices: impossible"),
            pytest.param(ledger_of(gpus([0], None)), wanting(gpu=2), {GPU: ()}, id="too few on nodes: impossible"),
        ],
    )
    def test_without_a_set_of_nodes_there_is_no_preference_or_no_way(self, ledger, container, hints):
        assert PROVIDER.hints(ledger, pod_of(container), container) == hints

    def test_a_changed_request_is_impossible(self):
        held = FOUR.give("pod", "app", devices={GPU: ["gpu-0", "gpu-1"]})

        assert PROVIDER.hints(held, pod_of(ONE), ONE) == {GPU: ()}
        assert PROVIDER.hints(held, pod_of(ONE), None) == {GPU: ()}

    def test_a_missing_held_device_restricts_nothing(self):
        pair = wanting(gpu=2)
        held = FOUR.give("pod", "app", devices={GPU: ["gpu-0", "gpu-3"]}).announce(GPU, gpus([0], [0], [1]))

        answer = PROVIDER.hints(held, pod_of(pair), pair)[GPU]

        assert shown(answer) == ["{0}", "{0-1} not preferred"]


class TestChoice:
    def test_ids_are_taken_in_natural_order(self):
        many = ledger_of(gpus(*[[0]] * 12))

        assert given_to(many, wanting(gpu=11))[-2:] == ("gpu-9", "gpu-10")

    def test_every_resource_of_a_container_is_served(self):
        ledger = FOUR.announce(NIC, [Device(NIC, "eth0", 0b1)])
        both = wanting(gpu=1, nic=1)

        outcome = allocate(ledger, pod_of(both), container=both, affinity=0b10)

        assert outcome.devices == {GPU: ("gpu-2",), NIC: ("eth0",)}
        assert outcome.ledger.holds("pod", "app") == outcome.devices

    def test_a_request_for_no_devices(self):
        assert allocate(FOUR, pod_of(ONE), container=wanting(gpu=0), affinity=None) == Allocated(FOUR)


class TestReuse:
    def test_containers_reuse_devices_of_init_containers(self):
        pod = pod_of(wanting(gpu=1), init=[wanting("first", gpu=2), wanting("second", gpu=3)])

        ledger = admitted(FOUR, pod, 0b1)

        assert ledger.holds("pod", "first") == {GPU: ("gpu-0", "gpu-1")}
        assert ledger.holds("pod", "second") == {GPU: ("gpu-0", "gpu-1", "gpu-2")}
        assert ledger.holds("pod", "app") == {GPU: ("gpu-0",)}
        assert ledger.reusable_by("pod") == {GPU: {"gpu-1", "gpu-2"}}
        assert ledger.take_back("pod") == FOUR

    def test_near_reusable_devices_come_first(self):
        pod = pod_of(ONE, init=[wanting("first", gpu=4)])
        ledger = allocate(FOUR, pod, container=pod.init[0], affinity=None).ledger

        outcome = allocate(ledger, pod, container=ONE, affinity=0b10)

        assert outcome.devices == {GPU: ("gpu-2",)}

    def test_a_missing_device_is_not_reused(self):
        pod = pod_of(ONE, init=[wanting("first", gpu=1)])
        ledger = allocate(FOUR, pod, container=pod.init[0], affinity=0b10).ledger
        ledger = ledger.announce(GPU, gpus([0], [0]))

        assert allocate(ledger, pod, container=ONE, affinity=None).devices == {GPU: ("gpu-0",)}

    def test_a_reusable_device_that_is_also_free_counts_once(self):
        """A ledger from outside may say so; the kubelet's hints then count it twice, its allocation does not."""
        odd = FOUR.with_reusable("pod", {GPU: frozenset({"gpu-0"})})

        assert rejected(odd, wanting(gpu=5)).endswith("Requested: 4, Available: 3")


class TestAdvice:
    ASK = PreferenceRequest(
        uid="pod",
        container="app",
        resource=GPU,
        available=("gpu-0", "gpu-1", "gpu-2", "gpu-3"),
        must_include=(),
        size=2,
    )

    def test_a_plugin_with_preferred_allocation_is_asked(self):
        pair = wanting(gpu=2)

        outcome = allocate(ASKED, pod_of(pair), container=pair, affinity=None)

        assert outcome == Allocated(ASKED, asks=(self.ASK,))

    def test_an_answer_to_another_request_is_not_used(self):
        """Since the question was asked, another pod took ``gpu-3``."""
        changed = ASKED.give("other", "app", devices={GPU: ["gpu-3"]})
        pair = wanting(gpu=2)

        outcome = allocate(changed, pod_of(pair), container=pair, affinity=None, answers={self.ASK: ("gpu-3", "gpu-1")})

        (ask,) = outcome.asks
        assert ask.available == ("gpu-0", "gpu-1", "gpu-2")

    def test_near_devices_are_taken_even_if_the_plugin_ignores_that_it_must_include_them(self):
        """It prefers ``gpu-0`` and ``gpu-1``: one of them comes with the only near device."""
        ledger = ledger_of(gpus([0], [0], [0], [1]))
        rules = PluginRules({GPU: PluginRule.INTEL_PACKED})

        choices = possible_choices(ledger, DeviceRequest("pod", "app", GPU, 2), affinity=0b10, rules=rules)

        option = (Pool(1, ("gpu-3",)), Pool(1, ("gpu-0", "gpu-1")))
        assert choices == DeviceChoices("app", GPU, (option,))

    def test_all_plugins_of_a_container_are_asked_at_once(self):
        ledger = ASKED.announce(NIC, [Device(NIC, f"eth{n}", 0b1) for n in range(2)], preferred_allocation=True)

        asks = self.asks(wanting(gpu=2, nic=1), ledger=ledger)

        assert [ask.resource for ask in asks] == [GPU, NIC]

    def test_no_plugin_is_asked_for_a_rejected_container(self):
        ledger = ASKED.announce(NIC, [])

        assert rejected(ledger, wanting(gpu=2, nic=1)).startswith("no healthy devices present")

    def asks(
        self, container: Container, *, affinity=None, ledger: DeviceLedger = ASKED
    ) -> tuple[PreferenceRequest, ...]:
        return allocate(ledger, pod_of(container), container=container, affinity=affinity).asks


@given(machines(), st.data())
def test_devices_near_the_chosen_nodes_come_first(machine, data):
    nodes, announced = machine
    ledger = ledger_of(announced, nodes=nodes)
    affinity = data.draw(subsets_of(nodes))
    aligned = unaligned = without = 0
    if announced:
        aligned, unaligned, without = by_affinity(ledger.inventories[GPU], ledger.free[GPU], affinity)
    free = (aligned | unaligned | without).bit_count()
    if not free:
        return
    count = data.draw(st.integers(1, free))

    chosen = ledger.inventories[GPU].find(given_to(ledger, wanting(gpu=count), affinity=affinity))

    assert chosen.bit_count() == count
    assert not aligned & ~chosen or not chosen & ~aligned, "no other is chosen while an aligned one is left"
    assert not unaligned & ~chosen or not chosen & without, "none without nodes while another one is left"
