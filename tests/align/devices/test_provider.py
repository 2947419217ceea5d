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

    def test_a_container_with_devices_has_hints_for_their_nodes(self):
        pod = pod_of(ONE)
        held = admitted(FOUR, pod, 0b10)

        answer = PROVIDER.hints(held, pod, ONE)[GPU]

        assert shown(answer) == ["{1}", "{0-1} not preferred"]

    def test_a_changed_request_is_impossible(self):
        held = FOUR.give("pod", "app", devices={GPU: ["gpu-0", "gpu-1"]})

        assert PROVIDER.hints(held, pod_of(ONE), ONE) == {GPU: ()}
        assert PROVIDER.hints(held, pod_of(ONE), None) == {GPU: ()}

    def test_a_missing_held_device_restricts_nothing(self):
        pair = wanting(gpu=2)
        held = FOUR.give("pod", "app", devices={GPU: ["gpu-0", "gpu-3"]}).announce(GPU, gpus([0], [0], [1]))

        answer = PROVIDER.hints(held, pod_of(pair), pair)[GPU]

        assert shown(answer) == ["{0}", "{0-1} not preferred"]

    def test_a_pod_adds_up_its_containers(self):
        pod = pod_of(wanting("one", gpu=1), wanting("two", gpu=2))

        answer = PROVIDER.hints(FOUR, pod, None)[GPU]

        assert shown(answer) == ["{0-1}"]


class TestChoice:
    @pytest.mark.parametrize(
        ("places", "count", "affinity", "chosen"),
        [
            pytest.param([[1], [0], [0]], 2, None, "01", id="without nodes to align with, the lowest"),
            pytest.param([[1], [0], [0]], 2, 0b1, "12", id="aligned ones"),
            pytest.param([[1], None, [0]], 2, 0b1, "02", id="then those of other nodes"),
            pytest.param([None, [1], [0]], 3, 0b1, "012", id="then those of no node"),
        ],
    )
    def test_near_devices_come_first(self, places, count, affinity, chosen):
        ledger = ledger_of(gpus(*places))

        assert given_to(ledger, wanting(gpu=count), affinity=affinity) == tuple(f"gpu-{number}" for number in chosen)

    def test_ids_are_taken_in_natural_order(self):
        many = ledger_of(gpus(*[[0]] * 12))

        assert given_to(many, wanting(gpu=11))[-2:] == ("gpu-9", "gpu-10")

    def test_every_resource_of_a_container_is_served(self):
        ledger = FOUR.announce(NIC, [Device(NIC, "eth0", 0b1)])
        both = wanting(gpu=1, nic=1)

        outcome = allocate(ledger, pod_of(both), container=both, affinity=0b10)

        assert outcome.devices == {GPU: ("gpu-2",), NIC: ("eth0",)}
        assert outcome.ledger.holds("pod", "app") == outcome.devices

    def test_a_container_keeps_its_devices(self):
        held = FOUR.give("pod", "app", devices={GPU: ["gpu-3"]})

        outcome = allocate(held, pod_of(ONE), container=ONE, affinity=0b1)

        assert outcome == Allocated(held, {GPU: ("gpu-3",)})

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

    def test_a_sidecar_keeps_its_devices(self):
        pod = pod_of(wanting(gpu=1), init=[wanting("first", gpu=1), wanting("proxy", gpu=1, sidecar=True)])

        ledger = admitted(FOUR, pod)

        assert ledger.holds("pod", "proxy") == {GPU: ("gpu-0",)}
        assert ledger.holds("pod", "app") == {GPU: ("gpu-1",)}

    def test_near_reusable_devices_come_first(self):
        pod = pod_of(ONE, init=[wanting("first", gpu=4)])
        ledger = allocate(FOUR, pod, container=pod.init[0], affinity=None).ledger

        outcome = allocate(ledger, pod, container=ONE, affinity=0b10)

        assert outcome.devices == {GPU: ("gpu-2",)}

    def test_hints_require_reusable_devices(self):
        pod = pod_of(ONE, init=[wanting("first", gpu=1)])
        ledger = allocate(FOUR, pod, container=pod.init[0], affinity=0b10).ledger

        answer = PROVIDER.hints(ledger, pod, ONE)[GPU]

        assert shown(answer) == ["{1}", "{0-1} not preferred"]

    def test_a_missing_device_is_not_reused(self):
        pod = pod_of(ONE, init=[wanting("first", gpu=1)])
        ledger = allocate(FOUR, pod, container=pod.init[0], affinity=0b10).ledger
        ledger = ledger.announce(GPU, gpus([0], [0]))

        assert allocate(ledger, pod, container=ONE, affinity=None).devices == {GPU: ("gpu-0",)}

    def test_a_reusable_device_that_is_also_free_counts_once(self):
        """A ledger from outside may say so; the kubelet's hints then count it twice, its allocation does not."""
        odd = FOUR.with_reusable("pod", {GPU: frozenset({"gpu-0"})})

        assert rejected(odd, wanting(gpu=5)).endswith("Requested: 4, Available: 3")

    def test_another_pod_ends_the_reuse_of_devices(self):
        pod = pod_of(ONE, init=[wanting("first", gpu=1)])
        ledger = allocate(FOUR, pod, container=pod.init[0], affinity=None).ledger

        ledger = admitted(ledger, pod_of(wanting(), uid="other"))

        assert allocate(ledger, pod, container=ONE, affinity=None).devices == {GPU: ("gpu-1",)}


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

    @pytest.mark.parametrize(
        ("answer", "chosen"),
        [
            pytest.param(("gpu-3", "gpu-1"), "13", id="its answer is taken"),
            pytest.param(("gpu-3",), "03", id="a short one is filled up"),
            pytest.param(("gpu-3", "gpu-2", "gpu-1"), "12", id="of a long one the lowest are taken"),
            pytest.param(("bogus", "gpu-3", "gpu-3"), "03", id="unknown and repeated ids are ignored"),
        ],
    )
    def test_answers(self, answer, chosen):
        expected = tuple(f"gpu-{number}" for number in chosen)

        assert given_to(ASKED, wanting(gpu=2), answers={self.ASK: answer}) == expected

    def test_a_plugin_error_leaves_no_trace(self):
        text = rejected(ASKED, wanting(gpu=2), answers={self.ASK: "no link"})

        assert text == "device plugin GetPreferredAllocation rpc failed with err: no link"
        assert ASKED.in_use == {}

    def test_an_answer_to_another_request_is_not_used(self):
        """Since the question was asked, another pod took ``gpu-3``."""
        changed = ASKED.give("other", "app", devices={GPU: ["gpu-3"]})
        pair = wanting(gpu=2)

        outcome = allocate(changed, pod_of(pair), container=pair, affinity=None, answers={self.ASK: ("gpu-3", "gpu-1")})

        (ask,) = outcome.asks
        assert ask.available == ("gpu-0", "gpu-1", "gpu-2")

    def test_the_plugin_chooses_among_aligned_devices_if_there_are_enough(self):
        (ask,) = self.asks(wanting(gpu=1), affinity=0b10)

        assert (ask.available, ask.must_include, ask.size) == (("gpu-2", "gpu-3"), (), 1)

    def test_the_plugin_is_not_asked_if_exactly_enough_devices_are_aligned(self):
        assert given_to(ASKED, wanting(gpu=2), affinity=0b10) == ("gpu-2", "gpu-3")

    def test_the_plugin_chooses_among_all_devices_if_too_few_are_aligned(self):
        (ask,) = self.asks(wanting(gpu=3), affinity=0b10)

        assert (ask.available, ask.must_include) == (self.ASK.available, ("gpu-2", "gpu-3"))
        assert given_to(ASKED, wanting(gpu=3), affinity=0b10, answers={ask: ("gpu-1",)}) == ("gpu-1", "gpu-2", "gpu-3")

    def test_reusable_devices_must_be_included(self):
        pod = pod_of(wanting(gpu=2), init=[wanting("first", gpu=1)])
        ledger = ASKED.give("pod", "first", devices={GPU: ["gpu-3"]}).with_reusable("pod", {GPU: frozenset({"gpu-3"})})

        (ask,) = allocate(ledger, pod, container=pod.containers[0], affinity=None).asks

        assert (ask.available, ask.must_include, ask.size) == (self.ASK.available, ("gpu-3",), 2)

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


class TestRefusals:
    @pytest.mark.parametrize(
        ("ledger", "count", "text"),
        [
            pytest.param(
                FOUR.give("pod", "app", devices={GPU: ["gpu-0"]}),
                2,
                'pod "pod" container "app" changed request for resource "example.com/gpu" from 1 to 2',
                id="the container wants another number than it has",
            ),
            pytest.param(
                GONE,
                1,
                "cannot allocate unregistered device example.com/gpu",
                id="the plugin is gone",
            ),
            pytest.param(
                FOUR.stop(GPU),
                1,
                "no healthy devices present; cannot allocate unhealthy devices example.com/gpu",
                id="the plugin has just gone",
            ),
            pytest.param(
                FOUR.give("pod", "app", devices={GPU: ["gpu-0"]}).announce(GPU, gpus([0], [0], ill=[0])),
                1,
                "previously allocated devices are no longer healthy; cannot allocate unhealthy devices example.com/gpu",
                id="what the container has is ill",
            ),
            pytest.param(
                FOUR.give("other", "app", devices={GPU: ["gpu-0"]})
                .give("pod", "init", devices={GPU: ["gpu-1"]})
                .with_reusable("pod", {GPU: frozenset({"gpu-1"})}),
                4,
                "requested number of devices unavailable for example.com/gpu. Requested: 3, Available: 2",
                id="too few are free beside those used again",
            ),
        ],
    )
    def test_texts(self, ledger, count, text):
        assert rejected(ledger, wanting(gpu=count)) == text


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
