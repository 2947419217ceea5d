"""PCI devices of the kernel, and GPUs of NVML."""

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest

from alignup.align.errors import SourceError
from alignup.align.locality import DeviceLink, LinkKind, PciPath
from alignup.align.machine import Device, PciDevice
from alignup.machines import synthetic, system
from alignup.machines.file_reader import ArchiveFiles, FileReader

BUS = "sys/bus/pci/devices"


def device(**texts: str) -> PciDevice:
    """The only device, described by *texts* at the target of its link."""
    contents = {f"sys/devices/pci0000:00/0000:00:04.0/{name}": f"{text}\n".encode() for name, text in texts.items()}
    links = {f"{BUS}/0000:00:04.0": "../../../devices/pci0000:00/0000:00:04.0"}
    (described,) = system.read_pci_devices(FileReader(ArchiveFiles.of(contents, links)))
    return described


def test_a_fully_described_device():
    described = device(
        **{"class": "0x030200"}, vendor="0x10de", device="0x2335", numa_node="1", local_cpulist="4-7", local_cpus="f"
    )

    path = PciPath("pci0000:00")
    assert described == PciDevice("0000:00:04.0", 0x030200, 0x10DE, 0x2335, node=1, cpus=0xF0, path=path)


@pytest.mark.parametrize(
    ("target", "path"),
    [
        pytest.param(
            "pci0000:3a/0000:3a:00.0/0000:3b:00.0/", ("pci0000:3a", "0000:3a:00.0", "0000:3b:00.0"), id="bridges"
        ),
        pytest.param(
            "pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0/",
            ("pci0000:00", "0000:00:0e.0", "10000:e0:06.0"),
            id="volume management",
        ),
        pytest.param("LNXSYSTM:00/VMBUS:00/47505500-0001/pci0001:00/", ("pci0001:00",), id="a bus of a hypervisor"),
        pytest.param("platform/soc/", None, id="no root complex"),
    ],
)
def test_the_target_of_a_device_has_its_bridges(target, path):
    contents = {f"sys/devices/{target}0000:00:04.0/vendor": b"0x10de\n"}
    links = {f"{BUS}/0000:00:04.0": f"../../../devices/{target}0000:00:04.0"}

    (described,) = system.read_pci_devices(FileReader(ArchiveFiles.of(contents, links)))

    assert described.path == (PciPath(path[0], path[1:]) if path else None)


def test_a_copy_that_followed_the_links_has_no_tree():
    contents = {f"{BUS}/0000:00:04.0/class": b"0x030200\n"}

    (described,) = system.read_pci_devices(FileReader(ArchiveFiles.of(contents, {})))

    assert described.path is None


def test_names_of_the_system_for_a_device():
    described = device(
        vendor="0x15b3",
        **{
            "net/eth0/address": "",
            "infiniband/mlx5_0/node_type": "",
            "nvme/nvme0/model": "",
            "virtio1/net/eth1/mtu": "",
        },
    )

    assert described.names == ("eth0", "eth1", "mlx5_0", "nvme0")


@pytest.mark.parametrize(
    ("texts", "node", "cpus"),
    [
        pytest.param({"numa_node": "-1", "local_cpulist": "0-3"}, None, 0xF, id="no node is not node 0"),
        pytest.param({"local_cpus": "ff"}, None, 0xFF, id="a mask only"),
        pytest.param({"numa_node": "x"}, None, None, id="not a number"),
        pytest.param({"numa_node": "250"}, 250, None, id="a high node number"),
        pytest.param({"numa_node": "99999999999"}, None, None, id="a number that no node has"),
    ],
)
def test_locality_is_the_kernels(texts, node, cpus):
    described = device(vendor="0x8086", **texts)

    assert (described.node, described.cpus) == (node, cpus)
    assert described.kind is None


def test_long_domains_and_odd_entries():
    names = ("0000:00:00.0", "10000:00:04.0", "0000:00:1f.2", "notpci", "0000:00:00.9")
    tree = FileReader(ArchiveFiles.of({f"{BUS}/{name}/vendor": b"0x1af4" for name in names}, {}))

    assert [each.address for each in system.read_pci_devices(tree)] == ["0000:00:00.0", "0000:00:1f.2", "10000:00:04.0"]


def test_dangling_devices_are_a_gap():
    links = {f"{BUS}/0000:00:00.0": "../../../devices/gone", f"{BUS}/0000:00:01.0": "/../../etc"}
    tree = FileReader(ArchiveFiles.of({}, links))

    assert system.read_pci_devices(tree) == ()
    assert tree.gaps == ("2 PCI devices are listed, but not described",)


def test_links_that_lead_nowhere_for_long_are_a_gap():
    links = {f"{BUS}/0000:00:00.0": "../" * 3 + "x", "sys/bus/x": "y/../" * 90 + "x"}
    tree = FileReader(ArchiveFiles.of({"sys/bus/y/": b""}, links))

    assert tree.resolve(f"{BUS}/0000:00:00.0") is None


def test_too_many_devices_are_an_error():
    names = (
        f"0000:{bus:02x}:{slot:02x}.{function}" for bus in range(256) for slot in range(32) for function in range(8)
    )
    tree = FileReader(ArchiveFiles.of({f"{BUS}/{name}/": b"" for name in names}, {}))

    with pytest.raises(SourceError, match="has 65536 PCI devices: expected at most 16384"):
        system.read_pci_devices(tree)


CARD = PciDevice("0000:9d:00.0", kind=0x030200, vendor=system.NVIDIA, device=0x2335, node=1)
PLAIN = synthetic.parse("numa:2 core:2 pu:1")
WITH_CARD = replace(PLAIN, pci=(CARD, PciDevice("0000:00:02.0", kind=0x030000, vendor=0x1234)))


class NVMLError(Exception):
    pass


class NVMLError_NotSupported(NVMLError):  # noqa: N801, N818 - NVML's names
    pass


class NVMLError_InvalidArgument(NVMLError):  # noqa: N801, N818
    pass


def library(*, fails: bool = False) -> ModuleType:
    made = ModuleType("pynvml")

    def init() -> None:
        if fails:
            raise NVMLError("Driver Not Loaded")

    made.__dict__.update(
        NVMLError=NVMLError,
        nvmlInit=init,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}",
        nvmlDeviceGetName=lambda _: b"NVIDIA H200",
        nvmlDeviceGetPciInfo=lambda handle: SimpleNamespace(
            busId=b"00000000:9D:00.0" if handle == 0 else "00000000:AA:00.0"
        ),
    )
    return made


INFORMATION = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 41\nGPU UUID: \t {}\nBus Location: \t 0000:9d:00.0\n"


def driver(*uuids: str) -> FileReader:
    """The files of NVIDIA's driver, with GPUs at 0000:9d:00.0 and after."""
    contents = {
        f"{system.DRIVER}/0000:{0x9D + index:02x}:00.0/information": INFORMATION.format(uuid).encode()
        for index, uuid in enumerate(uuids)
    }
    return FileReader(ArchiveFiles.of(contents, {}))


def test_gpus_have_the_node_of_their_pci_device(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", library())

    described = system.add_gpus(WITH_CARD, driver())

    assert described.devices == (
        Device(system.GPU_RESOURCE, "GPU-0", nodes=0b10),
        Device(system.GPU_RESOURCE, "GPU-1", nodes=None),
    )
    assert [device.names for device in described.pci] == [("GPU 0", "NVIDIA H200"), ()]


def test_gpus_are_found_without_a_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)

    described = system.add_gpus(WITH_CARD, driver("GPU-a"))

    assert described.devices == (Device(system.GPU_RESOURCE, "GPU-a", nodes=0b10),)
    assert [device.names for device in described.pci] == [("GPU 0", "NVIDIA H200"), ()]
    assert described.gaps == ()


@pytest.mark.parametrize(
    ("shape", "near", "node"),
    [
        pytest.param("numa:1 core:4 pu:1", None, 0, id="the only node"),
        pytest.param("numa:2 core:2 pu:1", 0b1100, 1, id="the node of the CPUs near it"),
        pytest.param("numa:2 core:2 pu:1", 0b1111, None, id="CPUs of all nodes"),
        pytest.param("numa:2 core:2 pu:1", None, None, id="unknown"),
    ],
)
def test_a_gpu_without_a_node_is_near_the_only_one_or_its_cpus(shape, near, node):
    machine = replace(synthetic.parse(shape), pci=(replace(CARD, node=None, cpus=near),))

    described = system.add_gpus(machine, driver("GPU-a"))

    assert described.pci[0].node == node
    assert described.devices[0].nodes == (None if node is None else 1 << node)


def test_question_marks_are_no_ids(monkeypatch):
    """The driver shows them until a GPU is used for the first time."""
    monkeypatch.setitem(sys.modules, "pynvml", library())

    assert system.add_gpus(WITH_CARD, driver("GPU-????????-????")).devices[0].id == "GPU-0"


@pytest.mark.parametrize(
    ("nvml", "reason"),
    [
        pytest.param(None, "run nvidia-smi once, or install the extra gpu (nvidia-ml-py)", id="no library"),
        pytest.param(library(fails=True), "Driver Not Loaded", id="no driver"),
    ],
)
def test_unreadable_gpus_are_a_gap(monkeypatch, nvml, reason):
    monkeypatch.setitem(sys.modules, "pynvml", nvml)

    machine = system.add_gpus(WITH_CARD, driver())

    assert machine.devices == ()
    assert machine.gaps == (f"1 NVIDIA GPU is on the PCI bus, but the ids are unknown: {reason}",)


def test_nvml_is_not_used_without_gpus(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", library(fails=True))

    assert system.add_gpus(PLAIN, driver()) is PLAIN


GPU_TYPE, NPU_TYPE, SWITCH_TYPE, UNKNOWN_TYPE = 0, 1, 2, 255
TWO_CARDS = replace(WITH_CARD, pci=(CARD, replace(CARD, address="0000:aa:00.0")))
BUSES = ("00000000:9D:00.0", "00000000:AA:00.0")


def linked_library(*ends: dict[int, tuple[int, str]]) -> ModuleType:
    """NVML with GPUs whose links lead to *ends*: the kind of the remote device, and its address; none is inactive."""
    made = library()

    def state(gpu: int, link: int) -> int:
        if not ends[gpu]:
            raise NVMLError_NotSupported
        if link > max(ends[gpu]):
            raise NVMLError_InvalidArgument
        return int(link in ends[gpu])

    def remote(gpu: int, link: int) -> SimpleNamespace:
        if ends[gpu][link][0] == SWITCH_TYPE:
            raise NVMLError("the address of a switch may be invisible")
        return SimpleNamespace(busId=ends[gpu][link][1].encode())

    made.__dict__.update(
        NVMLError_NotSupported=NVMLError_NotSupported,
        NVMLError_InvalidArgument=NVMLError_InvalidArgument,
        NVML_NVLINK_DEVICE_TYPE_GPU=GPU_TYPE,
        NVML_NVLINK_DEVICE_TYPE_IBMNPU=NPU_TYPE,
        NVML_NVLINK_DEVICE_TYPE_SWITCH=SWITCH_TYPE,
        nvmlDeviceGetNvLinkState=state,
        nvmlDeviceGetNvLinkRemoteDeviceType=lambda gpu, link: ends[gpu][link][0],
        nvmlDeviceGetNvLinkRemotePciInfo=remote,
    )
    return made


@pytest.mark.parametrize(
    ("ends", "links"),
    [
        pytest.param(
            ({0: (GPU_TYPE, BUSES[1]), 3: (GPU_TYPE, BUSES[1])}, {1: (GPU_TYPE, BUSES[0]), 2: (GPU_TYPE, BUSES[0])}),
            (DeviceLink(LinkKind.NVLINK, ("0000:9d:00.0", "0000:aa:00.0"), 2),),
            id="two links, listed from both ends",
        ),
        pytest.param(
            ({0: (SWITCH_TYPE, ""), 1: (UNKNOWN_TYPE, "FFFFFFFF:FF:FF.0")}, {0: (SWITCH_TYPE, "")}),
            (DeviceLink(LinkKind.NVSWITCH, ("0000:9d:00.0", "0000:aa:00.0"), 1),),
            id="a fabric gives the fewer links of both",
        ),
        pytest.param(
            ({0: (NPU_TYPE, "00000004:00:01.0")}, {}),
            (DeviceLink(LinkKind.NVLINK, ("0000:9d:00.0",), 1),),
            id="a link to the CPU",
        ),
        pytest.param(({}, {}), (), id="no NVLink"),
    ],
)
def test_links_of_several_gpus_come_from_nvml(monkeypatch, ends, links):
    monkeypatch.setitem(sys.modules, "pynvml", linked_library(*ends))

    described = system.add_gpus(TWO_CARDS, driver("GPU-a", "GPU-b"))

    assert described.links == links
    assert described.gaps == ()


def test_unreadable_links_are_a_gap(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", library(fails=True))

    described = system.add_gpus(TWO_CARDS, driver("GPU-a", "GPU-b"))

    assert described.gaps == ("the links between 2 NVIDIA GPUs are unknown: Driver Not Loaded",)
    assert len(described.devices) == 2


def test_a_gpu_is_found_by_its_uuid():
    assert system.add_gpus(WITH_CARD, driver("GPU-a")).locality.find("GPU-a") == CARD.address
