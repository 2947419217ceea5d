from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from alignup.align.errors import SettingsError
from alignup.align.hint import Hint
from alignup.align.host import Host
from alignup.align.machine import Device
from alignup.align.quantity import Quantity
from alignup.align.settings import FeatureGates, Policy, Scope, TopologySettings
from alignup.align.workload import Container, Pod, Resources, names
from alignup.align.workload.validation import accept
from alignup.placement.free_capacity import largest_requests
from alignup.simulate.admission import admit
from alignup.simulate.fragmentation import MAX_FILL_SHAPES, StrandedResources, distinct_shapes, measure_stranded
from tests.align.hosts import GIB, GPU, NIC, arrivals, host, hosts, pod
from tests.simulate.workloads import some
from tests.strategies_pods import container, guaranteed


def probe(resource: str, amount: int) -> Pod:
    """A Guaranteed pod that requests *amount* of one resource and the minimum of the others."""
    if resource not in {"cpu", "memory"} and not names.is_hugepages(resource):
        return Pod(name="probe", uid="probe", containers=(guaranteed("app", {resource: str(amount)}),))
    requests = {"cpu": "1m", "memory": "1"} | {resource: str(amount)}
    return Pod(name="probe", uid="probe", containers=(guaranteed("app", requests),))


def strict(one: Host) -> Host | None:
    """The same host with its ledger under policy single-numa-node; ``None`` if that is not possible."""
    topology = TopologySettings(policy=Policy.SINGLE_NUMA_NODE, scope=Scope.CONTAINER)
    settings = replace(one.settings, topology=topology, pod_policy_annotations=False)
    try:
        return Host(one.machine, settings, ledger=one.ledger)
    except SettingsError:
        return None


def steps(resource: str, most: int) -> list[int]:
    """Amounts to try: all of them, or for bytes those around *most*."""
    if resource == "memory" or names.is_hugepages(resource):
        page = (names.is_hugepages(resource) and names.page_size(resource)) or 1
        return [amount for amount in (page, most, most + page) if amount > 0]
    return list(range(1, most + 4))


@some
@given(hosts(), st.data())
def test_the_largest_request_is_the_largest_that_is_admitted_on_one_node(one, data):
    for number in range(data.draw(st.integers(0, 4))):
        admit(one, data.draw(arrivals(f"u{number}")))
    strictest = strict(one)
    if strictest is None:
        return

    room = largest_requests(one)

    for resource in {name for own in room.values() for name in own}:
        most = max(own.get(resource, 0) for own in room.values())
        taken = [size for size in steps(resource, most) if admitted(strictest, probe(resource, size))]
        assert max(taken, default=0) == most, resource


@some
@given(hosts(), st.data())
def test_a_node_provides_as_many_cpus_as_reported(one, data):
    for number in range(data.draw(st.integers(0, 4))):
        admit(one, data.draw(arrivals(f"u{number}")))
    provider = next(each for each in one.providers if each.name == "cpu")
    assume("align-by-socket" not in one.settings.cpus.options)  # it takes CPUs of the whole socket

    for node, room in largest_requests(one).items():
        wanted = probe("cpu", room.get("cpu", 0))
        ledger = provider.allocate(one.ledger.cpus, wanted, wanted.containers[0], affinity=Hint(1 << node, True))
        allocated = ledger.holds("probe", "app") or 0

        assert allocated.bit_count() == room.get("cpu", 0)
        assert not allocated & ~one.view.node_cpus.get(node, 0)


def admitted(one: Host, wanted: Pod) -> bool:
    before = one.ledger
    try:
        return admit(one, wanted).admitted
    finally:
        one.ledger = before


class TestLargest:
    def test_an_idle_host_offers_everything_that_is_not_reserved(self):
        assert largest_requests(host()) == {
            0: {"memory": 16 * GIB - (64 << 20), "cpu": 3, GPU: 1, NIC: 1},
            1: {"memory": 16 * GIB, "cpu": 4, GPU: 1, NIC: 1},
        }

    def test_allocated_resources_are_not_offered(self):
        one = host()
        admit(one, pod("a", cpu="3", gpu="1"))

        assert largest_requests(one)[0] == {"memory": 15 * GIB - (64 << 20), "cpu": 0, GPU: 0, NIC: 1}

    def test_a_node_without_free_memory_offers_no_cpus(self):
        one = host(fit_check=False)
        admit(one, pod("a", cpu="1", memory=str(16 * GIB - (64 << 20))))

        assert largest_requests(one)[0] == {"memory": 0, "cpu": 0, GPU: 1, NIC: 1}

    def test_a_node_in_a_group_offers_no_memory(self):
        one = host(Policy.BEST_EFFORT)
        admit(one, pod("a", cpu="1", memory="20Gi"))

        assert {node: own["memory"] for node, own in largest_requests(one).items()} == {0: 0, 1: 0}

    def test_a_host_with_max_pods_offers_nothing(self):
        assert largest_requests(host(max_pods=0)) == {node: {"memory": 0, "cpu": 0, GPU: 0, NIC: 0} for node in (0, 1)}

    def test_pods_on_shared_cpus_reduce_the_offer(self):
        one = host()
        shared = Pod(name="s", uid="s", containers=(container("app", {"cpu": "5500m"}),))
        admit(one, shared)

        assert [own["cpu"] for own in largest_requests(one).values()] == [1, 1]

    def test_unmanaged_resources_are_not_reported(self):
        one = host(memory=False)
        cpus = replace(one.settings.cpus, policy="none")
        unmanaged = Host(one.machine, replace(one.settings, cpus=cpus))

        assert largest_requests(unmanaged)[0] == {GPU: 1, NIC: 1}

    def test_devices_without_topology_count_on_every_node(self):
        one = host()
        machine = replace(one.machine, devices=(Device(GPU, "a", nodes=None), Device(GPU, "b", nodes=None)))

        assert [own[GPU] for own in largest_requests(Host(machine, one.settings)).values()] == [2, 2]

    def test_full_pcpus_only_offers_whole_cores(self):
        options = {"full-pcpus-only": "true"}
        one = host(shape="pack:2 numa:1 core:4 pu:2", memory=False)
        one = Host(one.machine, replace(one.settings, cpus=replace(one.settings.cpus, options=options)))

        assert [own["cpu"] for own in largest_requests(one).values()] == [6, 8]

    def test_half_a_core_left_in_total_is_not_offered(self):
        options = {"full-pcpus-only": "true"}
        one = host(shape="pack:2 numa:1 core:1 pu:2", memory=False)
        one = Host(one.machine, replace(one.settings, cpus=replace(one.settings.cpus, options=options)))
        admit(one, Pod(name="s", uid="s", containers=(container("app", {"cpu": "2"}),)))

        assert [own["cpu"] for own in largest_requests(one).values()] == [0, 0]


class TestShapes:
    def test_pods_with_equal_requests_have_one_shape(self):
        pods = [pod("a"), pod("b", cpu="1"), pod("c"), pod("d")]

        assert [one.uid for one in distinct_shapes(pods)] == ["a", "b"]

    def test_the_spelling_of_quantities_does_not_matter(self):
        assert len(distinct_shapes([pod("a", cpu="2"), pod("b", cpu="2000m")])) == 1


class TestStranded:
    def test_usable_resources_are_not_stranded(self):
        assert measure_stranded(host(), [pod("a", cpu="1")]) == StrandedResources(0, {GPU: 2, NIC: 2}, more=7)

    def test_cpus_that_no_pod_can_get_on_one_node_are_stranded(self):
        assert measure_stranded(host(), [pod("a", cpu="2")]) == StrandedResources(1, {GPU: 2, NIC: 2}, more=3)

    def test_devices_without_cpus_on_their_node_are_stranded(self):
        one = host()
        admit(one, pod("a", cpu="3"))

        assert measure_stranded(one, [pod("b", gpu="1")]) == StrandedResources(2, {GPU: 1, NIC: 2}, more=1)

    def test_the_most_demanding_pods_come_first(self):
        found = measure_stranded(host(), [pod("a", cpu="1"), pod("b", cpu="1"), pod("c", cpu="3", gpu="1")])

        assert found == StrandedResources(0, {GPU: 0, NIC: 2}, more=3)

    def test_the_ledger_is_restored(self):
        one = host()
        before = one.ledger

        measure_stranded(one, [pod("a")])

        assert one.ledger is before

    def test_pods_without_allocations_do_not_fill_a_host(self):
        shared = Pod(name="s", uid="s", containers=(Container("app", Resources({"cpu": Quantity.parse("1m")})),))

        assert measure_stranded(host(fit_check=False), [shared]).more == 0

    def test_filling_stops_when_a_pod_allocates_nothing(self):
        """Like the kubelet, allocate no devices to a container with pod-level resources."""
        gates = FeatureGates({"PodLevelResourceManagers": True})
        one = host(scope=Scope.POD, fit_check=False, gates=gates)
        requests = {"cpu": Quantity.parse("500m"), "memory": Quantity.parse("1Gi")}
        lone = Container("app", Resources(limits={GPU: Quantity.parse("1")}))
        wanted = accept(Pod(name="a", uid="a", containers=(lone,), resources=Resources(requests, requests)))

        assert measure_stranded(one, [wanted]) == StrandedResources(7, {GPU: 2, NIC: 2}, more=0)

    @pytest.mark.parametrize(
        ("place", "more"), [pytest.param(0, 1, id="frequent"), pytest.param(MAX_FILL_SHAPES, 0, id="rare")]
    )
    def test_only_the_most_frequent_shapes_are_tried(self, place, more):
        too_large = [pod(f"p{number}", cpu=str(100 + number)) for number in range(MAX_FILL_SHAPES)]
        wanted = [*too_large[:place], pod("small", cpu="4"), *too_large[place:]]

        assert measure_stranded(host(), wanted).more == more
