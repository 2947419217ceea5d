"""NodeResourceTopology with zones, costs, counts and attributes as its consumers expect them; problems in HostState."""

from dataclasses import replace

import pytest

from alignup.align.machine import Device, Distances, HugePages
from alignup.align.workload import Pod
from alignup.documents.codec import encode
from alignup.kubernetes.api.client import _decode
from alignup.kubernetes.api.objects import NodeResourceTopology
from alignup.kubernetes.api.pod_fingerprint import pod_fingerprint
from alignup.observe.observation import join
from alignup.observe.published_objects import FingerprintMethod, host_state, node_topology
from tests.align.hosts import GIB, GPU, pod
from tests.observe.kubelets import ObservedKubelet
from tests.strategies_pods import container, guaranteed

SHARED = Pod(name="shared", uid="s", containers=(container("app", {"cpu": "1500m"}),))


def topology(kubelet, **options):
    return node_topology(join(kubelet.sources(), settled=False), **options)


def attributes(document):
    return {attribute["name"]: attribute["value"] for attribute in document["attributes"]}


def resource(document, zone, name):
    """Capacity, allocatable and available of a resource in a zone."""
    (numa_zone,) = (entry for entry in document["zones"] if entry["name"] == zone)
    amounts = {entry["name"]: entry for entry in numa_zone["resources"]}
    return (
        tuple(int(amounts[name][key]) for key in ("capacity", "allocatable", "available")) if name in amounts else None
    )


def test_each_numa_node_is_a_zone_with_exact_counts():
    kubelet = ObservedKubelet()
    kubelet.run(pod("a", gpu="1"))
    document = topology(kubelet)

    assert [(zone["name"], zone["type"]) for zone in document["zones"]] == [("node-0", "Node"), ("node-1", "Node")]
    assert resource(document, "node-0", "cpu") == (4, 3, 1)
    assert resource(document, "node-1", "cpu") == (4, 4, 4)
    assert resource(document, "node-0", "memory") == (16 * GIB, 16 * GIB - (64 << 20), 15 * GIB - (64 << 20))
    assert resource(document, "node-1", "memory") == (16 * GIB, 16 * GIB, 16 * GIB)
    assert (resource(document, "node-0", GPU), resource(document, "node-1", GPU)) == ((1, 1, 0), (1, 1, 1))
    assert document["topologyPolicies"] == ["SingleNUMANodeContainerLevel"]


def test_consumers_decode_it():
    document = _decode(encode({"metadata": {"name": "n"}, **topology(ObservedKubelet())}), NodeResourceTopology)

    assert [zone.name for zone in document.zones] == ["node-0", "node-1"]
    assert document.zones[0].resources[0].allocatable == "3"


def test_attributes_name_every_policy_and_option():
    machine = replace(ObservedKubelet().machine, distances=Distances.of_rows({0: [10, 21], 1: [21, 10]}))
    kubelet = ObservedKubelet(
        machine=machine,
        topologyManagerScope="pod",
        topologyManagerPolicyOptions={"prefer-closest-numa-nodes": "true", "max-allowable-numa-nodes": "16"},
        cpuManagerPolicyOptions={"full-pcpus-only": "true"},
    )

    document = attributes(topology(kubelet))

    assert {name: value for name, value in document.items() if "Fingerprint" not in name} == {
        "topologyManagerPolicy": "single-numa-node",
        "topologyManagerScope": "pod",
        "topologyManagerMaxNUMANodes": "16",
        "topologyManagerPolicyOptions": "max-allowable-numa-nodes=16,prefer-closest-numa-nodes=true",
        "cpuManagerPolicy": "static",
        "cpuManagerPolicyOptions": "full-pcpus-only=true",
        "memoryManagerPolicy": "Static",
    }


@pytest.mark.parametrize(
    ("method", "names"), [(FingerprintMethod.EXCLUSIVE, ["a"]), (FingerprintMethod.ALL, ["a", "i", "shared"])]
)
def test_the_fingerprint_names_its_method_and_counts_the_same_pods_as_a_scheduler(method, names):
    kubelet = ObservedKubelet(memoryManagerPolicy="None", reservedMemory=None)
    kubelet.run(pod("a"))
    kubelet.run(SHARED)
    only_init = (guaranteed("init", {"cpu": "1", "memory": "1Gi"}),)
    kubelet.run(
        Pod(name="i", uid="i", init=only_init, containers=(guaranteed("app", {"cpu": "500m", "memory": "1Gi"}),))
    )

    document = attributes(topology(kubelet, method=method))

    assert document["nodeTopologyPodsFingerprintMethod"] == method
    assert document["nodeTopologyPodsFingerprint"] == pod_fingerprint([("default", name) for name in names])


def sparse_kubelet(**changes):
    """NUMA nodes 0 and 3, with huge pages on node 3."""
    base = ObservedKubelet().machine
    pages = (HugePages(2 << 20, 512),)
    machine = replace(
        base,
        cpus=tuple(replace(cpu, node=3 if cpu.node == 1 else 0) for cpu in base.cpus),
        nodes=(base.nodes[0], replace(base.nodes[1], id=3, hugepages=pages)),
        distances=Distances({0: {0: 10, 3: 31}, 3: {0: 32, 3: 10}}),
    )
    return ObservedKubelet(machine=machine, devices=(), **changes)


def test_ids_with_gaps_keep_their_numbers_and_costs():
    document = topology(sparse_kubelet())

    assert [zone["name"] for zone in document["zones"]] == ["node-0", "node-3"]
    assert document["zones"][1]["costs"] == [{"name": "node-0", "value": 32}, {"name": "node-3", "value": 10}]
    assert resource(document, "node-3", "hugepages-2Mi") == (GIB, GIB, GIB)
    assert resource(document, "node-3", "memory") == (16 * GIB, 15 * GIB, 15 * GIB)


def test_memory_on_several_nodes_is_subtracted_where_the_kubelet_subtracts_it():
    kubelet = sparse_kubelet(topologyManagerPolicy="restricted")
    kubelet.run(pod("a", memory="20Gi", cpu="5"))

    document = topology(kubelet)

    tables = kubelet.host.ledger.memory.nodes
    available = [resource(document, zone, "memory")[2] for zone in ("node-0", "node-3")]
    assert available == [tables[0].tables["memory"].free, tables[3].tables["memory"].free]
    assert sum(available) == 11 * GIB - (64 << 20)


def test_a_device_near_several_nodes_counts_in_each_of_their_zones():
    devices = (Device(GPU, "both", nodes=0b11), Device(GPU, "one", nodes=0b10), Device(GPU, "none", nodes=None))
    kubelet = ObservedKubelet(devices=devices)
    before = topology(kubelet)
    kubelet.run(pod("a", gpu="2"))
    held = topology(kubelet)

    assert [resource(before, f"node-{node}", GPU) for node in (0, 1)] == [(1, 1, 1), (2, 2, 2)]
    assert [resource(held, f"node-{node}", GPU) for node in (0, 1)] == [(1, 1, 0), (2, 2, 0)]


def test_what_no_manager_allocates_is_available_as_a_whole():
    kubelet = ObservedKubelet(
        topologyManagerPolicy="none", cpuManagerPolicy="none", memoryManagerPolicy="None", reservedMemory=None
    )
    kubelet.run(pod("a"))

    document = topology(kubelet)

    assert resource(document, "node-0", "cpu") == (4, 4, 4)
    assert resource(document, "node-0", "memory") == (16 * GIB, 16 * GIB, 16 * GIB)
    assert document["topologyPolicies"] == ["None"]


def test_many_problems_are_shortened():
    observation = join(ObservedKubelet().sources())

    def problems(*contradictions):
        return host_state(replace(observation, contradictions=contradictions, gaps=())).problems

    assert problems("a", "b") == ["a", "b"]
    assert problems(*(str(number) for number in range(25)))[-2:] == ["19", "and 5 more"]


def test_a_host_state_has_all_gates_and_the_ranges_of_ids():
    kubelet = ObservedKubelet(featureGates={"JobManagedBy": True, "AllBeta": True})
    sources = replace(kubelet.sources(), sub_ids={"subuid": "65536:1048576"})

    state = host_state(join(sources, settled=False))

    assert state.configuration["featureGates"] == {"JobManagedBy": True, "AllBeta": True}
    assert state.sub_ids == {"subuid": "65536:1048576"}
