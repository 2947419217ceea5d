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
from alignup.simulate.container_placements import admit
from alignup.simulate.stranded import MAX_FILL_SHAPES, StrandedResources, distinct_shapes, measure_stranded
from tests.align.hosts import GIB, GPU, NIC, arrivals, hosts, make_host, make_pod
from tests.simulate.workloads import some
from tests.strategies_pods import container, guaranteed


def probe(resource: str, amount: int) -> Pod:
    """A Guaranteed pod that requests *amount* of one resource and the minimum of the others."""
    if resource not in {"cpu", "memory"} and not names.is_hugepages(resource):
        return Pod(name="probe", uid="probe", containers=(guaranteed("app", {resource: str(amount)}),))
    requests = {"cpu": "1m", "memory": "1"} | {resource: str(amount)}
    return Pod(name="probe", uid="probe", containers=(guaranteed("app", requests),))


def strict(kubelet: Host) -> Host | None:
    """The same host with its ledger under policy single-numa-node; ``None`` if that is not possible."""
    topology = TopologySettings(policy=Policy.SINGLE_NUMA_NODE, scope=Scope.CONTAINER)
    settings = replace(kubelet.settings, topology=topology, pod_policy_annotations=False)
    try:
        return Host(kubelet.machine, settings, ledger=kubelet.ledger)
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
def test_the_largest_request_is_the_largest_that_is_admitted_on_one_node(kubelet, data):
    for number in range(data.draw(st.integers(0, 4))):
        admit(kubelet, data.draw(arrivals(f"u{number}")))
    strictest = strict(kubelet)
    if strictest is None:
        return

    room = largest_requests(kubelet)

    for resource in {name for node in room.values() for name in node}:
        most = max(node.get(resource, 0) for node in room.values())
        taken = [size for size in steps(resource, most) if admitted(strictest, probe(resource, size))]
        assert max(taken, default=0) == most, resource


@some
@given(hosts(), st.data())
def test_a_node_provides_as_many_cpus_as_reported(kubelet, data):
    for number in range(data.draw(st.integers(0, 4))):
        admit(kubelet, data.draw(arrivals(f"u{number}")))
    provider = next(each for each in kubelet.providers if each.name == "cpu")
    assume("align-by-socket" not in kubelet.settings.cpus.options)  # it takes CPUs of the whole socket

    for node, room in largest_requests(kubelet).items():
        wanted = probe("cpu", room.get("cpu", 0))
        ledger = provider.allocate(kubelet.ledger.cpus, wanted, wanted.containers[0], affinity=Hint(1 << node, True))
        allocated = ledger.holds("probe", "app") or 0

        assert allocated.bit_count() == room.get("cpu", 0)
        assert not allocated & ~kubelet.view.node_cpus.get(node, 0)


def admitted(kubelet: Host, wanted: Pod) -> bool:
    before = kubelet.ledger
    try:
        return admit(kubelet, wanted).admitted
    finally:
        kubelet.ledger = before


class TestLargest:
    def test_an_idle_host_offers_everything_that_is_not_reserved(self):
        assert largest_requests(make_host()) == {
            0: {"memory": 16 * GIB - (64 << 20), "cpu": 3, GPU: 1, NIC: 1},
            1: {"memory": 16 * GIB, "cpu": 4, GPU: 1, NIC: 1},
        }

    def test_a_host_with_max_pods_offers_nothing(self):
        assert largest_requests(make_host(max_pods=0)) == {
            node: {"memory": 0, "cpu": 0, GPU: 0, NIC: 0} for node in (0, 1)
        }

    def test_unmanaged_resources_are_not_reported(self):
        kubelet = make_host(memory=False)
        cpus = replace(kubelet.settings.cpus, policy="none")
        unmanaged = Host(kubelet.machine, replace(kubelet.settings, cpus=cpus))

        assert largest_requests(unmanaged)[0] == {GPU: 1, NIC: 1}

    def test_devices_without_topology_count_on_every_node(self):
        kubelet = make_host()
        machine = replace(kubelet.machine, devices=(Device(GPU, "a", nodes=None), Device(GPU, "b", nodes=None)))

        assert [node[GPU] for node in largest_requests(Host(machine, kubelet.settings)).values()] == [2, 2]

    def test_half_a_core_left_in_total_is_not_offered(self):
        options = {"full-pcpus-only": "true"}
        kubelet = make_host(shape="pack:2 numa:1 core:1 pu:2", memory=False)
        kubelet = Host(kubelet.machine, replace(kubelet.settings, cpus=replace(kubelet.settings.cpus, options=options)))
        admit(kubelet, Pod(name="s", uid="s", containers=(container("app", {"cpu": "2"}),)))

        assert [node["cpu"] for node in largest_requests(kubelet).values()] == [0, 0]


class TestShapes:
    def test_pods_with_equal_requests_have_one_shape(self):
        pods = [make_pod("a"), make_pod("b", cpu="1"), make_pod("c"), make_pod("d")]

        assert [kubelet.uid for kubelet in distinct_shapes(pods)] == ["a", "b"]

    def test_the_spelling_of_quantities_does_not_matter(self):
        assert len(distinct_shapes([make_pod("a", cpu="2"), make_pod("b", cpu="2000m")])) == 1


class TestStranded:
    def test_usable_resources_are_not_stranded(self):
        assert measure_stranded(make_host(), [make_pod("a", cpu="1")]) == StrandedResources(0, {GPU: 2, NIC: 2}, more=7)

    def test_cpus_that_no_pod_can_get_on_one_node_are_stranded(self):
        assert measure_stranded(make_host(), [make_pod("a", cpu="2")]) == StrandedResources(1, {GPU: 2, NIC: 2}, more=3)

    def test_devices_without_cpus_on_their_node_are_stranded(self):
        kubelet = make_host()
        admit(kubelet, make_pod("a", cpu="3"))

        assert measure_stranded(kubelet, [make_pod("b", gpu="1")]) == StrandedResources(2, {GPU: 1, NIC: 2}, more=1)

    def test_the_most_demanding_pods_come_first(self):
        stranded = measure_stranded(
            make_host(), [make_pod("a", cpu="1"), make_pod("b", cpu="1"), make_pod("c", cpu="3", gpu="1")]
        )

        assert stranded == StrandedResources(0, {GPU: 0, NIC: 2}, more=3)

    def test_the_ledger_is_restored(self):
        kubelet = make_host()
        before = kubelet.ledger

        measure_stranded(kubelet, [make_pod("a")])

        assert kubelet.ledger is before

    def test_pods_without_allocations_do_not_fill_a_host(self):
        shared = Pod(name="s", uid="s", containers=(Container("app", Resources({"cpu": Quantity.parse("1m")})),))

        assert measure_stranded(make_host(fit_check=False), [shared]).more == 0

    def test_filling_stops_when_a_pod_allocates_nothing(self):
        """Like the kubelet, allocate no devices to a container with pod-level resources."""
        gates = FeatureGates({"PodLevelResourceManagers": True})
        kubelet = make_host(scope=Scope.POD, fit_check=False, gates=gates)
        requests = {"cpu": Quantity.parse("500m"), "memory": Quantity.parse("1Gi")}
        lone = Container("app", Resources(limits={GPU: Quantity.parse("1")}))
        wanted = accept(Pod(name="a", uid="a", containers=(lone,), resources=Resources(requests, requests)))

        assert measure_stranded(kubelet, [wanted]) == StrandedResources(7, {GPU: 2, NIC: 2}, more=0)

    @pytest.mark.parametrize(
        ("place", "more"), [pytest.param(0, 1, id="frequent"), pytest.param(MAX_FILL_SHAPES, 0, id="rare")]
    )
    def test_only_the_most_frequent_shapes_are_tried(self, place, more):
        too_large = [make_pod(f"p{number}", cpu=str(100 + number)) for number in range(MAX_FILL_SHAPES)]
        wanted = [*too_large[:place], make_pod("small", cpu="4"), *too_large[place:]]

        assert measure_stranded(make_host(), wanted).more == more
