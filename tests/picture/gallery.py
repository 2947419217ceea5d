"""Machines worth a picture, and the pictures of the documentation.

``python -m tests.picture.gallery`` draws them again.
"""

from dataclasses import replace
from pathlib import Path

from hypothesis import reject
from hypothesis import strategies as st

from alignup import load
from alignup.align.claims.ledger import MODEL, ClaimLedger
from alignup.align.claims.resource_claims import DeviceId, SliceDevice
from alignup.align.cpus.options import CpuSettings
from alignup.align.errors import SettingsError
from alignup.align.host import Host, Settings
from alignup.align.machine import Device, Distances, HugePages, Machine, NumaNode, PciDevice
from alignup.align.memory.reserved_memory import ReservedMemory
from alignup.align.quantity import Quantity
from alignup.align.settings import Policy, TopologySettings
from alignup.align.workload import Pod
from alignup.machines.synthetic import parse
from alignup.picture.machine_svg import draw_svg
from tests.strategies import GIB, MIB, machines
from tests.strategies_pods import amounts, guaranteed

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
GPU, NIC = "example.com/gpu", "example.com/nic"


def tiny() -> Machine:
    """One node, two CPUs."""
    return parse("pack:1 numa:1(memory=4GiB) core:2 pu:1")


def server() -> Machine:
    """Two sockets of 32 CPUs, with two caches, two GPUs and a NIC each."""
    pages = (HugePages(2 * MIB, 512), HugePages(GIB, 4))
    hardware = parse("pack:2 numa:1(memory=64GiB) l3:2 core:8 pu:2", hugepages=pages, distances=(10, 21))
    devices = [Device(GPU, f"gpu-{number}", nodes=1 << number // 2) for number in range(4)]
    devices += [Device(NIC, f"eth{node}", nodes=1 << node) for node in (0, 1)]
    return replace(hardware, devices=tuple(devices))


def large() -> Machine:
    """Eight nodes of 256 CPUs each, two to a socket."""
    return parse("pack:4 numa:2(memory=512GiB) l3:8 core:16 pu:2", distances=(10, 32))


def superchip() -> Machine:
    """Two nodes with CPUs, and 34 for the memory of GPUs and their parts, four of which have some."""
    hardware = parse("pack:2 numa:1(memory=480GiB) core:72 pu:1")
    nodes = (*hardware.nodes, *(NumaNode(id_, 186 * GIB if id_ in {2, 10, 19, 27} else 0) for id_ in range(2, 36)))
    gpus = (Device(GPU, f"gpu-{number}", nodes=1 << number // 2) for number in range(4))
    home = {node.id: node.id if node.id < 2 else (node.id - 2) // 17 for node in nodes}
    matrix = {a: {b: _apart(a, b, near=home[a] == home[b]) for b in home} for a in home}
    return replace(hardware, nodes=nodes, distances=Distances(matrix), devices=tuple(gpus)).checked()


def _apart(a: int, b: int, *, near: bool) -> int:
    if a == b:
        return 10
    if max(a, b) < 2:
        return 40
    return 80 if near and min(a, b) < 2 else 120


def pod(name: str, **asked: str) -> Pod:
    """A Guaranteed pod of one container; ``_`` in a resource stands for a dash."""
    names = {"gpu": GPU, "nic": NIC}
    resources = {names.get(resource, resource.replace("_", "-")): amount for resource, amount in asked.items()}
    return Pod(name=name, uid=f"uid-{name}", containers=(guaranteed("main", resources),))


def busy() -> Host:
    """The server, with five pods on it."""
    kept = amounts({"cpu": "2", "memory": "2Gi"})
    host = Host(
        server(),
        Settings(
            topology=TopologySettings(policy=Policy.BEST_EFFORT),
            cpus=CpuSettings(policy="static", reservation=kept["cpu"]),
            memory_policy="Static",
            reserved_memory=(ReservedMemory(0, amounts({"memory": "2Gi"})),),
            reservation=kept,
        ),
    )
    pods = (
        pod("train-0", cpu="8", memory="24Gi", gpu="2"),
        pod("database", cpu="4", memory="16Gi", hugepages_1Gi="2Gi"),
        pod("web-7c9", cpu="500m", memory="1Gi"),
        pod("router", cpu="6", memory="4Gi", nic="1", hugepages_2Mi="512Mi"),
        pod("infer-1", cpu="10", memory="20Gi", gpu="1"),
    )
    for each in pods:
        assert host.admit(each).admitted, each.name
    return host


def tutorial() -> Host:
    """The machine of the tutorial, with the pods that run on it."""
    settings = Settings(
        topology=TopologySettings(policy=Policy.SINGLE_NUMA_NODE),
        cpus=CpuSettings(policy="static", reservation=Quantity.parse("1"), explicit=1),
    )
    host = Host(load(str(PICTURES.parents[1] / "examples" / "tutorial" / "machine.yaml")), settings)
    for name in ("database", "cache"):
        assert host.admit(pod(name, cpu="2", memory="4Gi")).admitted, name
    return host


def claimed() -> Host:
    """The server with GPUs for claims instead of a plugin: one pod holds two, two pods share one, and one is free."""
    machine = server()
    host = Host(
        replace(machine, devices=tuple(device for device in machine.devices if device.resource == NIC)),
        Settings(
            topology=TopologySettings(policy=Policy.BEST_EFFORT),
            cpus=CpuSettings(policy="static", reservation=amounts({"cpu": "2"})["cpu"]),
        ),
    )
    for name, cpus in (("train-0", "8"), ("infer-0", "4"), ("infer-1", "500m")):
        assert host.admit(pod(name, cpu=cpus, memory="4Gi")).admitted, name
    gpus = [DeviceId("gpu.example.com", "host-a", f"gpu-{number}") for number in range(4)]
    devices = (SliceDevice(gpu, {MODEL: "H100"}, nodes=1 << number // 2) for number, gpu in enumerate(gpus))
    shared = {"main": {"default/shared-gpu": (gpus[2],)}}
    held = {"uid-train-0": {"main": {"default/train-gpus": (gpus[0], gpus[1])}}}
    claims = ClaimLedger(tuple(devices), {**held, "uid-infer-0": shared, "uid-infer-1": shared})
    host.ledger = replace(host.ledger, claims=claims)
    return host


@st.composite
def decorated(draw: st.DrawFn) -> Machine:
    """Any machine, with devices of any name anywhere, PCI devices, and CPUs of no node."""
    machine = draw(machines(max_nodes=12))
    sets = st.none() | st.frozensets(st.integers(0, 20), max_size=3).map(lambda ids: sum(1 << id_ for id_ in ids))
    names = st.text(min_size=1, max_size=40)
    devices = draw(
        st.lists(
            st.builds(Device, st.sampled_from((GPU, NIC, '<&">')), names, sets, st.booleans()),
            max_size=24,
            unique_by=lambda device: (device.resource, device.id),
        )
    )
    pci = draw(st.lists(st.sampled_from((None, 0x020000, 0x030200, 0x060400)), max_size=8))
    functions = (
        PciDevice(f"0000:{turn:02x}:00.0", kind=kind, node=draw(st.none() | st.integers(0, 12)))
        for turn, kind in enumerate(pci)
    )
    homeless = draw(st.sampled_from((0, 0, 0, 5)))
    cpus = tuple(replace(cpu, node=None) if homeless and cpu.id % homeless == 1 else cpu for cpu in machine.cpus)
    machine = replace(machine, cpus=cpus, pci=tuple(functions), gaps=(draw(names),))
    return machine.with_reported(devices).checked()


@st.composite
def hosts(draw: st.DrawFn) -> Host:
    """Any machine with a few pods on it."""
    machine = draw(decorated())
    settings = Settings(
        topology=TopologySettings(policy=Policy.BEST_EFFORT, limit_nodes=False),
        cpus=CpuSettings(policy="static", reservation=Quantity.parse("1")),
    )
    try:
        host = Host(machine, settings)
    except SettingsError:  # the one CPU a node claims cannot be reserved
        reject()
    names = st.sampled_from(("web", "<b>", "a\nb", "\u202e"))
    for turn, cpus in enumerate(draw(st.lists(st.sampled_from(("1", "2", "3", "500m")), max_size=30))):
        host.admit(pod(draw(names) + str(turn), cpu=cpus, memory="1Mi", gpu="1"))
    devices = draw(
        st.lists(
            st.builds(
                SliceDevice,
                st.builds(DeviceId, names, names, st.text(max_size=20)),
                nodes=st.none() | st.integers(1, 7),
            ),
            max_size=8,
        )
    )
    uids = st.sampled_from([*host.ledger.pods, "ended"])
    held = {draw(uids): {"main": {draw(names): (device.id, devices[0].id)}} for device in devices}
    host.ledger = replace(host.ledger, claims=ClaimLedger(tuple(devices), held))
    return host


def drawn() -> dict[str, str]:
    """The pictures of the documentation, by file name."""
    with_pods = {"busy.svg": busy(), "claimed.svg": claimed(), "tutorial.svg": tutorial()}
    pictures = {name: draw_svg(host.machine, host.ledger) for name, host in with_pods.items()}
    return {"superchip.svg": draw_svg(superchip()), **pictures}


if __name__ == "__main__":
    for name, picture in drawn().items():
        (PICTURES / name).write_text(picture, encoding="utf-8")
