"""Where devices of claims are, and whether CPUs and memory are beside them."""

from dataclasses import replace

import pytest

from alignup.align import bits
from alignup.align.claims import allocation
from alignup.align.claims.alignment import (
    ExplainedClaim,
    HostClaims,
    decided_nodes,
    numa_nodes,
    place_devices,
)
from alignup.align.claims.resource_claims import (
    NUMA_NODE,
    PCI_BUS_ID,
    PCIE_ROOT,
    AllocatedDevice,
    AttributeValue,
    ClaimObjects,
    ClaimRequest,
    DeviceClass,
    DeviceTaint,
    SliceDevice,
)
from alignup.align.cpus.options import CpuSettings
from alignup.align.errors import AlignError
from alignup.align.host import Host, Settings
from alignup.align.machine import Cpu, Distances, Machine, NumaNode, PciDevice
from alignup.align.quantity import Quantity
from alignup.align.settings import Policy, TopologySettings
from alignup.align.workload import Container, Pod, PodClaim, Resources
from tests.align.claims.samples import any_device, claim, device

#: Two NUMA nodes of four CPUs, and one of a GPU, which has memory only and is nearest to node 1.
MACHINE = Machine(
    cpus=tuple(Cpu(number, number, number // 4, number // 4) for number in range(8)),
    nodes=(NumaNode(0, 1 << 34), NumaNode(1, 1 << 34), NumaNode(2, 1 << 34)),
    distances=Distances({0: {0: 10, 1: 20, 2: 40}, 1: {0: 20, 1: 10, 2: 30}, 2: {0: 40, 1: 30, 2: 10}}),
    pci=(PciDevice("0000:17:00.0", node=0), PciDevice("0000:97:00.0", node=1), PciDevice("0000:98:00.0", node=1)),
).checked()
STATIC = Settings(
    topology=TopologySettings(policy=Policy.SINGLE_NUMA_NODE),
    cpus=CpuSettings(policy="static", reservation=Quantity.of(1), explicit=1),
)
CLASSES = {"gpu": DeviceClass("gpu")}
GPU = ClaimRequest("gpu", "gpu")


def pod(cpus: int = 2) -> Pod:
    amounts = {"cpu": Quantity.of(cpus), "memory": Quantity.of(1 << 20)}
    container = Container("app", Resources(amounts, amounts, ("gpu",)))
    return Pod(name="p", uid="u", containers=(container,), claims=(PodClaim("gpu", "c"),))


def explain(devices: list[SliceDevice], allocated: list[str] | None = None, *, cpus: int = 2) -> ExplainedClaim:
    host = Host(MACHINE, STATIC)
    ids = {each.id.device: each.id for each in devices}
    given = None if allocated is None else tuple(AllocatedDevice("gpu", ids[name]) for name in allocated)
    objects = ClaimObjects(CLASSES, {("default", "c"): claim(GPU, allocated=given)})
    wanting = pod(cpus)
    placements = host.decide(wanting).placements
    (explained,) = HostClaims(objects, tuple(devices), any_device).explain(wanting, placements, host)
    return explained


class TestNumaNodes:
    @pytest.mark.parametrize(
        ("attributes", "nodes"),
        [
            ({NUMA_NODE: 1}, [1]),
            ({NUMA_NODE: (0, 1)}, [0, 1]),
            ({PCI_BUS_ID: "0000:97:00.0"}, [1]),
            ({PCIE_ROOT: "pci0000:17"}, [0]),
            ({PCI_BUS_ID: "0000:aa:00.0", PCIE_ROOT: "pci0000:97"}, [1]),
            ({NUMA_NODE: 2}, [1]),
            ({NUMA_NODE: 7, PCI_BUS_ID: "0000:17:00.0"}, [0]),
        ],
        ids=["attribute", "several", "PCI address", "PCIe root", "root of another address", "no CPUs", "wrong node"],
    )
    def test_they_are_an_attribute_or_those_of_the_pci_device(self, attributes, nodes):
        assert numa_nodes(attributes, MACHINE) == bits.of(nodes)

    @pytest.mark.parametrize(
        "attributes", [{}, {NUMA_NODE: -1}, {NUMA_NODE: "1"}, {NUMA_NODE: True}, {PCIE_ROOT: "x"}, {PCI_BUS_ID: 7}]
    )
    def test_they_can_be_unknown(self, attributes: dict[str, AttributeValue]):
        assert numa_nodes(attributes, MACHINE) is None

    def test_without_a_machine_only_the_attribute_tells(self):
        assert numa_nodes({NUMA_NODE: 7}, None) == 1 << 7
        assert numa_nodes({PCI_BUS_ID: "0000:97:00.0"}, None) is None
        assert numa_nodes({NUMA_NODE: (1 << 63) - 1}, None) is None

    def test_nodes_that_do_not_exist_are_reported(self):
        devices = [replace(device(f"gpu-{number}"), attributes={NUMA_NODE: (1, 7)}) for number in range(6)]
        unknown = replace(device("gpu-6"), attributes={NUMA_NODE: -1})

        _, problems = place_devices([*devices, unknown], MACHINE)

        assert problems == (
            (
                "this machine does not have NUMA node 7 of device gpu.example.com/node-a/gpu-0, "
                "gpu.example.com/node-a/gpu-1, gpu.example.com/node-a/gpu-2, gpu.example.com/node-a/gpu-3 and 2 more "
                "in its ResourceSlice"
            ),
        )

    def test_devices_are_placed_on_the_machine(self):
        (placed,), _ = place_devices([replace(device("a"), attributes={NUMA_NODE: 1})], MACHINE)

        assert placed.nodes == 0b10


class TestExplainedClaims:
    def test_devices_beside_the_cpus_are_aligned(self):
        explained = explain([device("gpu-0", node=0)], ["gpu-0"])

        assert explained.aligned is True
        assert explained.sentence() == "device gpu-0 is on NUMA node 0, the CPUs will be on NUMA node 0: aligned"
        assert explained.remedy() == ""

    def test_devices_elsewhere_are_not(self):
        explained = explain([device("gpu-1", node=1)], ["gpu-1"])

        assert explained.aligned is False
        assert explained.sentence() == "device gpu-1 is on NUMA node 1, the CPUs will be on NUMA node 0: not aligned"
        assert explained.remedy() == ""

    def test_a_device_beside_the_cpus_does_not_align_another(self):
        explained = explain([device("gpu-0", node=0), device("gpu-1", node=1)], ["gpu-0", "gpu-1"])

        assert explained.aligned is False
        assert explained.sentence() == (
            "devices gpu-0, gpu-1 are on NUMA nodes 0-1, the CPUs will be on NUMA node 0: not aligned"
        )

    def test_a_free_device_beside_the_cpus_is_proposed(self):
        near = replace(device("gpu-0", node=0), attributes={NUMA_NODE: 0})

        assert explain([near, device("gpu-1", node=1)], ["gpu-1"]).remedy() == (
            "claim a device on NUMA node 0 (gpu-0) with the selector "
            'device.attributes["resource.kubernetes.io"].numaNode == 0'
        )

    def test_without_the_attribute_no_selector_is_proposed(self):
        explained = explain([device("gpu-0", node=0), device("gpu-1", node=1)], ["gpu-1"])

        assert explained.remedy() == "claim a device on NUMA node 0 (gpu-0)"

    def test_before_the_allocation_every_device_that_matches_counts(self):
        either = explain([device("gpu-0", node=0), device("gpu-1", node=1)])
        never = explain([device("gpu-1", node=1)])

        assert either.aligned is None
        assert either.sentence() == (
            "the device of claim gpu will be on NUMA node 0 or 1, the CPUs will be on NUMA node 0: "
            "aligned or not, as the scheduler chooses"
        )
        assert never.aligned is False

    def test_a_pod_without_exclusive_cpus_is_neither(self):
        host = Host(MACHINE)
        objects = ClaimObjects(CLASSES, {("default", "c"): claim(GPU)})
        claims = HostClaims(objects, (device("gpu-1", node=1),), any_device)
        (explained,) = claims.explain(pod(), host.decide(pod()).placements, host)

        assert explained.aligned is None
        assert explained.sentence() == "the device of claim gpu will be on NUMA node 1"

    def test_an_unknown_numa_node_is_said_to_be_one(self):
        explained = explain([device("gpu-0")], ["gpu-0"])

        assert (explained.aligned, explained.sentence()) == (None, "the NUMA node of device gpu-0 is not known")

    def test_too_few_devices_are_a_problem(self):
        taken = explain([], None)

        assert taken.state.problem == "this node does not have enough free devices that match"

    @pytest.mark.parametrize("allocated", [None, (AllocatedDevice("gpu", device("gpu-1").id),)])
    def test_a_selector_that_cannot_be_evaluated_is_a_problem_before_the_allocation(self, allocated):
        def broken(request: ClaimRequest, _: SliceDevice) -> bool:
            raise AlignError(f"the selector of {request.name} cannot be evaluated")

        host = Host(MACHINE, STATIC)
        objects = ClaimObjects(CLASSES, {("default", "c"): claim(GPU, allocated=allocated)})
        claims = HostClaims(objects, (device("gpu-0", node=0), device("gpu-1", node=1)), broken)
        (explained,) = claims.explain(pod(), host.decide(pod()).placements, host)

        assert explained.state.problem == ("" if allocated else "the selector of gpu cannot be evaluated")
        assert bool(explained.sentence()) is bool(allocated)
        assert explained.better == ()

    def test_claims_that_can_get_devices_one_by_one_but_not_together_are_a_problem(self):
        host = Host(MACHINE, STATIC)
        objects = ClaimObjects(CLASSES, {("default", name): claim(GPU, name=name) for name in ("c", "d")})
        both = replace(pod(), claims=(PodClaim("gpu", "c"), PodClaim("other", "d")))
        devices = (device("gpu-0", node=0), device("gpu-1", node=1))

        def problems(count: int) -> set[str]:
            return {state.problem for state in HostClaims(objects, devices[:count], any_device).states(both, host)}

        assert problems(2) == {""}
        assert problems(1) == {"this node does not have enough free devices for all claims together"}

    def test_claims_that_cannot_be_decided_together_are_a_problem(self, monkeypatch):
        monkeypatch.setattr(allocation, "MAX_STEPS", 1)
        objects = ClaimObjects(CLASSES, {("default", name): claim(GPU, name=name) for name in ("c", "d")})
        both = replace(pod(), claims=(PodClaim("gpu", "c"), PodClaim("other", "d")))
        devices = (device("gpu-0", node=0), device("gpu-1", node=1))

        states = HostClaims(objects, devices, any_device).states(both, Host(MACHINE, STATIC))
        assert ["within 1 steps" in state.problem for state in states] == [True, True]

    def test_a_shared_device_in_use_is_a_candidate(self):
        shared = replace(device("gpu-0", node=0), shared=True)
        other = claim(GPU, name="other", allocated=(AllocatedDevice("gpu", shared.id),))
        objects = ClaimObjects(CLASSES, {("default", "c"): claim(GPU), ("default", "other"): other})

        (state,) = HostClaims(objects, (shared,), any_device).states(pod(), Host(MACHINE, STATIC))
        assert (state.devices, state.problem) == ((("gpu", shared),), "")

    def test_a_device_with_a_taint_is_neither_a_candidate_nor_proposed(self):
        tainted = replace(device("gpu-0", node=0), taints=(DeviceTaint("broken", "", "NoSchedule"),))

        assert [each.id.device for _, each in explain([tainted, device("gpu-1", node=1)]).state.devices] == ["gpu-1"]
        assert explain([tainted, device("gpu-1", node=1)], ["gpu-1"]).better == ()

    def test_a_claim_with_the_name_of_a_resource_is_used_by_the_containers_that_name_it(self):
        amounts = {"cpu": Quantity.of(2), "memory": Quantity.of(1 << 20)}
        user = Container("app", Resources(amounts, amounts, ("memory",)))
        both = replace(pod(), containers=(user, Container("other", Resources(amounts, amounts))))
        placements = Host(MACHINE, STATIC).decide(both).placements

        assert [bits.show(placement.cpus or 0) for placement in placements] == ["1-2", "4-5"]
        assert decided_nodes(both, placements, "memory", MACHINE).cpus == bits.of([0])

    def test_the_document_has_everything(self):
        document = explain([device("gpu-1", node=1, model="h100")], ["gpu-1"]).to_document()

        assert document == {
            "name": "gpu",
            "claim": "default/c",
            "allocated": True,
            "devices": [
                {
                    "request": "gpu",
                    "driver": "gpu.example.com",
                    "pool": "node-a",
                    "device": "gpu-1",
                    "numaNodes": [1],
                    "attributes": {"gpu.example.com/model": "h100"},
                }
            ],
            "problem": "",
            "cpuNumaNodes": [0],
            "memoryNumaNodes": [],
            "aligned": False,
            "sentence": "device gpu-1 is on NUMA node 1, the CPUs will be on NUMA node 0: not aligned",
            "remedy": "",
        }


def states(objects: ClaimObjects, devices: tuple[SliceDevice, ...] = (), wanting: Pod | None = None) -> str:
    host = Host(MACHINE, STATIC)
    (state,) = HostClaims(objects, devices, any_device).states(wanting or pod(), host)
    return state.problem


def test_problems_name_what_is_missing():
    gpu = device("gpu-0", node=0)
    allocated = (AllocatedDevice("gpu", gpu.id),)
    known = {("default", "c"): claim(GPU, allocated=allocated, reserved_for=frozenset({"other"}))}

    assert states(ClaimObjects(CLASSES)) == "ResourceClaim default/c is not known"
    assert states(ClaimObjects({}, {("default", "c"): claim(GPU)})) == "DeviceClass gpu is not known"
    assert states(ClaimObjects(CLASSES, known)) == "no ResourceSlice of this node has gpu.example.com/node-a/gpu-0"
    assert states(ClaimObjects(CLASSES, known), (gpu,)) == "default/c is reserved for other pods"
