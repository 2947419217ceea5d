"""Demands on the locality of devices: their text, and which sets of devices satisfy them."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.devices.demanded_locality import (
    DemandedLocality,
    LocalityDemand,
    check_demand,
    locality_demands,
    parse_demands,
)
from alignup.align.errors import ParseError, PodError
from alignup.align.locality import FLAT, DeviceLink, Level, LinkKind, Locality, PciPath, StatedLevel
from alignup.align.machine import Cpu, Machine, NumaNode, PciDevice
from alignup.align.quantity import Quantity
from alignup.align.workload import Container, Pod, PodClaim, Resources
from alignup.align.workload.names import DEVICES_ANNOTATION, MARKER

GPU, NIC, FPGA = "nvidia.com/gpu", "rdma/nic", "example.com/fpga"
CLASSES = {"gpu": 0x030200, "nic": 0x020000, "fpga": 0x120000}
CPUS = tuple(Cpu(cpu, core=cpu, socket=cpu, node=cpu) for cpu in range(2))
SWITCH, ROOT, NVLINK, SPREAD = (LocalityDemand(locality) for locality in DemandedLocality)


def pci(kind: str, number: int, *bridges: str, root: str | None, node: int = 0) -> PciDevice:
    address = f"0000:{number:02x}:00.0"
    return PciDevice(address, kind=CLASSES[kind], node=node, path=PciPath(root, bridges), uuid=f"{kind}-{number}")


#: Two NUMA nodes with two root complexes each. A root has two ports; below the first one there is a switch with two
#: GPUs and a NIC, below the other one a NIC.
DEVICES = tuple(
    device
    for root in range(4)
    for device in (
        pci("gpu", 8 * root, f"p{root}", f"up{root}", "a", root=f"pci0000:{root}0", node=root // 2),
        pci("gpu", 8 * root + 1, f"p{root}", f"up{root}", "b", root=f"pci0000:{root}0", node=root // 2),
        pci("nic", 8 * root + 2, f"p{root}", f"up{root}", "c", root=f"pci0000:{root}0", node=root // 2),
        pci("nic", 8 * root + 3, f"q{root}", root=f"pci0000:{root}0", node=root // 2),
    )
)
LINKS = tuple(DeviceLink(LinkKind.NVLINK, (f"0000:{a:02x}:00.0", f"0000:{b:02x}:00.0")) for a, b in ((0, 1), (0, 8)))


def locality(*devices: PciDevice, links: tuple[DeviceLink, ...] = (), stated: tuple[StatedLevel, ...] = ()) -> Locality:
    nodes = (NumaNode(0), NumaNode(1))
    return Machine(CPUS, nodes, pci=devices, links=links, stated_levels=stated).checked().locality


TREE = locality(*DEVICES, links=LINKS)


def devices(gpus: tuple[int, ...] = (), nics: tuple[int, ...] = ()) -> dict[str, list[str]]:
    return {GPU: [f"gpu-{number}" for number in gpus], NIC: [f"nic-{number}" for number in nics]}


@pytest.mark.parametrize(
    ("demand", "gpus", "nics", "reason"),
    [
        pytest.param(SWITCH, (0,), (2,), "", id="GPU and NIC below one switch"),
        pytest.param(SWITCH, (0,), (3,), "gpu-0 has no NIC below its PCIe switch", id="GPU and NIC on two root ports"),
        pytest.param(ROOT, (0,), (3,), "", id="two root ports are one root complex"),
        pytest.param(ROOT, (0,), (10,), "gpu-0 has no NIC below its root complex", id="two root complexes"),
        pytest.param(SWITCH, (0, 1), (2,), "", id="two GPUs share a NIC below their switch"),
        pytest.param(SWITCH, (0, 8), (2,), "gpu-8 has no NIC below its PCIe switch", id="the second GPU is elsewhere"),
        pytest.param(SWITCH, (0, 8, 16), (2, 10, 18), "", id="each of several GPUs has a NIC of its own"),
        pytest.param(SWITCH, (0,), (2, 10), "nic-10 has no GPU below its PCIe switch", id="a NIC without a GPU"),
        pytest.param(SWITCH, (0, 1), (), "", id="GPUs alone below one switch"),
        pytest.param(
            SWITCH, (0, 8), (), "gpu-0 and gpu-8 have no PCIe switch in common (NODE)", id="every two GPUs count"
        ),
        pytest.param(SWITCH, (0,), (), "", id="one device is near itself"),
        pytest.param(NVLINK, (0, 8), (26,), "", id="a NIC does not matter for links"),
        pytest.param(NVLINK, (0, 1, 8), (), "no NVLink connects gpu-1 and gpu-8", id="every two GPUs need a link"),
    ],
)
def test_devices_of_a_container(
    demand: LocalityDemand, gpus: tuple[int, ...], nics: tuple[int, ...], reason: str
) -> None:
    assert check_demand(demand, TREE, devices(gpus, nics)) == (not reason, reason)


@pytest.mark.parametrize(
    ("demand", "others", "satisfied", "reason"),
    [
        (SPREAD, {GPU: ["gpu-8"]}, True, ""),
        (SPREAD, {NIC: ["nic-3"]}, False, "gpu-0 shares its root complex with nic-3 of another pod"),
        (SPREAD, {FPGA: ["board"]}, True, ""),
        (
            LocalityDemand(DemandedLocality.SPREAD, (GPU,)),
            {GPU: ["MIG-7"]},
            None,
            "the PCI address of MIG-7 (nvidia.com/gpu) is not known; name the resources that the demand is about",
        ),
    ],
)
def test_devices_of_other_pods(
    demand: LocalityDemand, others: dict[str, list[str]], satisfied: bool | None, reason: str
) -> None:
    assert check_demand(demand, TREE, devices((0,)), others) == (satisfied, reason)


def test_the_marker_of_a_numa_node_is_no_device():
    assert check_demand(SWITCH, TREE, {**devices((0,), (2,)), MARKER: ["numa-0-0"]}).satisfied


def test_only_the_named_resources_count() -> None:
    demand = LocalityDemand(DemandedLocality.SAME_SWITCH, (GPU,))

    assert check_demand(demand, TREE, devices((0, 1), (26,))).satisfied
    assert not check_demand(demand, TREE, devices((0, 8), (2,))).satisfied


def test_replicas_are_where_their_gpu_is() -> None:
    assert check_demand(SWITCH, TREE, {GPU: ["gpu-0::1", "gpu-0::2"], NIC: ["nic-2"]}).satisfied
    assert check_demand(SWITCH, TREE, {GPU: ["gpu-0::1", "gpu-1::1"]}).satisfied


def test_a_flat_machine_cannot_say() -> None:
    flat = locality(*(pci("gpu", number, root="pci0000:00") for number in range(2)))

    answer = check_demand(SWITCH, flat, devices((0, 1)))

    assert answer.satisfied is None
    assert FLAT in answer.reason
    nic = pci("nic", 2, root="pci0000:00")
    both = locality(pci("gpu", 0, root="pci0000:00"), nic)
    assert check_demand(SWITCH, both, devices((0,), (2,))).satisfied is None
    assert check_demand(SPREAD, both, devices((0,)), {NIC: ["nic-2"]}).satisfied is None
    assert check_demand(NVLINK, flat, devices((0, 1))) == (None, "the links between the GPUs are not known")


def test_a_device_without_an_address_cannot_be_judged() -> None:
    answer = check_demand(ROOT, TREE, {GPU: ["gpu-0"], FPGA: ["board"]})

    assert answer.satisfied is None
    assert "board (example.com/fpga)" in answer.reason


def test_without_root_complexes_devices_of_one_node_may_share_one() -> None:
    nccl = locality(pci("gpu", 0, "s", root=None), pci("gpu", 1, "t", root=None), pci("gpu", 2, "u", root=None, node=1))

    assert check_demand(ROOT, nccl, devices((0, 1))).satisfied is None
    assert check_demand(SWITCH, nccl, devices((0, 1))).satisfied is False
    assert check_demand(ROOT, nccl, devices((0, 1, 2))).satisfied is False  # certain beats unknown


def test_stated_levels_tell_that_there_is_no_link() -> None:
    addresses = [f"0000:{number:02x}:00.0" for number in range(2)]
    stated = StatedLevel((addresses[0], addresses[1]), Level.PIX)
    gpus = [PciDevice(address, kind=CLASSES["gpu"], node=0) for address in addresses]
    smi = locality(*gpus, stated=(stated,))

    assert check_demand(SWITCH, smi, {GPU: addresses}).satisfied
    assert check_demand(NVLINK, smi, {GPU: addresses}).satisfied is False


@given(st.permutations(sorted(TREE.pci)), st.integers(0, 5))
def test_nearer_demands_imply_farther_ones_in_any_order(order: list[str], size: int) -> None:
    chosen = {"all": order[:size]}

    answers = [check_demand(demand, TREE, chosen).satisfied for demand in (SWITCH, ROOT)]

    assert None not in answers
    assert answers[1] or not answers[0]
    assert answers == [
        check_demand(demand, TREE, {"all": sorted(chosen["all"])}).satisfied for demand in (SWITCH, ROOT)
    ]


def test_a_part_of_gpus_below_one_switch_is_below_one_switch() -> None:
    gpus = [device.uuid for device in DEVICES if device.kind == CLASSES["gpu"]]
    satisfied = {pair for pair in combinations(gpus, 2) if check_demand(SWITCH, TREE, {GPU: pair}).satisfied}

    for triple in combinations(gpus, 3):
        expected = all(pair in satisfied for pair in combinations(triple, 2))
        assert check_demand(SWITCH, TREE, {GPU: triple}).satisfied is expected


@pytest.mark.parametrize(
    ("text", "demands"),
    [
        ("same-switch", (SWITCH,)),
        (" spread ;nvlink = a.com/b , c ;spread", (SPREAD, LocalityDemand(DemandedLocality.NVLINK, ("a.com/b", "c")))),
    ],
)
def test_demands_are_parsed(text: str, demands: tuple[LocalityDemand, ...]) -> None:
    assert parse_demands(text) == demands
    assert parse_demands("; ".join(map(str, demands))) == demands


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("near", '"near" is no locality of devices; supported: same-switch, same-root, nvlink, spread'),
        ("", '"" is no locality of devices'),
        ("nvlink;", '"" is no locality of devices'),
        ("same-root=", '"" is no resource: name part must be non-empty; write it like same-root=nvidia.com/gpu'),
        ("same-root=a/b/c", '"a/b/c" is no resource: must be a name with at most one prefix'),
    ],
)
def test_a_malformed_demand_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ParseError) as error:
        parse_demands(text)
    assert str(error.value).startswith(message)


def pod(annotation: str | None) -> Pod:
    containers = (
        Container("app", Resources(limits={GPU: Quantity(2)})),
        Container("side", Resources(limits={NIC: Quantity(1)})),
    )
    annotations = {} if annotation is None else {DEVICES_ANNOTATION: annotation}
    return Pod(name="pod", containers=containers, claims=(PodClaim("disks"),), annotations=annotations)


def test_a_pod_demands_by_its_annotation() -> None:
    assert locality_demands(pod(None)) == ()
    names = (GPU, NIC, "disks")
    assert locality_demands(pod(f"same-root={','.join(names)}")) == (LocalityDemand(DemandedLocality.SAME_ROOT, names),)


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        ("near", f'metadata.annotations[{DEVICES_ANNOTATION}]: "near" is no locality of devices'),
        (f"spread={FPGA}", f"metadata.annotations[{DEVICES_ANNOTATION}]: no container requests {FPGA}, and the pod"),
    ],
)
def test_a_wrong_annotation_is_a_problem_of_the_pod(annotation: str, message: str) -> None:
    with pytest.raises(PodError) as error:
        locality_demands(pod(annotation))
    assert str(error.value).startswith(message)
