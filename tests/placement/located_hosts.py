"""Hosts whose devices have places below their NUMA nodes, and pods that demand near ones."""

from dataclasses import replace
from typing import Any

from alignup.align.host import Host, Settings
from alignup.align.locality import DeviceLink, LinkKind, PciPath
from alignup.align.machine import Device, Machine, PciDevice
from alignup.align.settings import Policy, TopologySettings
from alignup.align.workload import Pod
from alignup.align.workload.names import DEVICES_ANNOTATION
from alignup.machines.synthetic import parse
from tests.strategies_pods import container

GPU, NIC = "nvidia.com/gpu", "vendor.com/nic"
GPU_CLASS, NIC_CLASS = 0x030200, 0x020000


def located_machine(*, switches: int = 2, gpus: int = 2, flat: bool = False, first: int = 0) -> Machine:
    """Two NUMA nodes with one root complex each; below each of its switches are GPUs and a NIC.

    GPUs have the ids gpu-0, gpu-1, and so on, from *first* on, and NICs their addresses.
    """
    pci, devices, links = [], [], []
    for node in range(2):
        for switch in range(switches):
            bus, pair = 0x10 + 0x20 * node + 4 * switch, []
            for slot in range(gpus + 1):
                bridges = (f"0000:{node}0:0{switch}.0", f"0000:{bus:02x}:00.0", f"0000:{bus + 1:02x}:0{slot}.0")
                path = PciPath(f"pci0000:{node}0", () if flat else bridges)
                address, is_gpu = f"0000:{bus + 2:02x}:0{slot}.0", slot < gpus
                number = first + (node * switches + switch) * gpus + slot
                id_ = f"gpu-{number}" if is_gpu else address
                kind = GPU_CLASS if is_gpu else NIC_CLASS
                pci.append(PciDevice(address, kind=kind, node=node, path=path, uuid=id_ if is_gpu else ""))
                devices.append(Device(GPU if is_gpu else NIC, id_, node=node))
                pair += [address] if is_gpu else []
            if gpus > 1 and not flat:
                links.append(DeviceLink(LinkKind.NVLINK, (pair[0], pair[1]), 4))
    machine = parse("pack:2 numa:1 core:4 pu:1", memory=1 << 34)
    return replace(machine, pci=tuple(pci), links=tuple(links)).with_reported(devices)


def located_host(*pods: Pod, policy: Policy = Policy.SINGLE_NUMA_NODE, rules: Any = None, **machine: Any) -> Host:
    settings = Settings(topology=TopologySettings(policy=policy), plugin_rules=rules or {}, kubelet_faults=True)
    host = Host(located_machine(**machine), settings)
    for pod in pods:
        assert host.admit(pod).admitted, pod.uid
    return host


def device_pod(uid: str, gpus: int = 2, nics: int = 0, *, demand: str = "", priority: int | None = None) -> Pod:
    amounts = {GPU: str(gpus)} | ({NIC: str(nics)} if nics else {})
    annotations = {DEVICES_ANNOTATION: demand} if demand else {}
    return Pod(
        name=uid, uid=uid, containers=(container("app", amounts, amounts),), annotations=annotations, priority=priority
    )
