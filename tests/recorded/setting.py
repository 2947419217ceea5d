"""The host of a recording: the guest's machine, its device plugins, and its KubeletConfiguration as settings."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from alignup.align import bits
from alignup.align.host import Settings
from alignup.align.machine import Cpu, Device, Distances, HugePages, Machine, NumaNode
from alignup.align.release import NEWEST, Release, find_release
from alignup.kubernetes import configuration

Document = Mapping[str, Any]


def machine_of(recording: Document) -> Machine:
    """The guest, with the devices its plugins offered from the start."""
    guest = recording["machine"]
    homes = {
        cpu: int(node) for node, info in guest["nodes"].items() for cpu in bits.members(bits.parse(info["cpulist"]))
    }
    pages_set = recording["hugepages_set"]
    return Machine(
        cpus=tuple(_cpu(int(id_), info, guest=guest, node=homes[int(id_)]) for id_, info in guest["cpus"].items()),
        nodes=tuple(_node(int(id_), info, pages_set.get(id_)) for id_, info in guest["nodes"].items()),
        distances=Distances.of_rows({int(id_): info["distance"] for id_, info in guest["nodes"].items()}),
        devices=tuple(
            Device(plugin["resource"], device["id"], None if device["nodes"] is None else bits.of(device["nodes"]))
            for plugin in recording["plugins"]
            for device in plugin["devices"]
        ),
        memory=guest["memtotal_kB"] * 1024,
    ).checked()


def release_of(recording: Document) -> Release:
    """The release of the kubelet that was recorded; the newest one where the recording does not name it."""
    version = recording.get("kubelet_version", "")
    return find_release(version) if version else NEWEST


def settings_of(config: Document, machine: Machine, release: Release, *, resources: Iterable[str] = ()) -> Settings:
    """What *config* tells the managers on *machine*; rejected where a kubelet would reject it before it asks them.

    The plugins of all *resources* are to be asked for their preference. For one that has none the replay answers what
    the kubelet picked, which it did at random.
    """
    settings = configuration.host_settings(configuration.read(json.dumps(config), release=release), machine)
    return replace(settings, preferred_allocation=frozenset(resources))


def announced(resource: str, message: Document) -> list[Device]:
    """The devices in a ListAndWatch message."""
    return [
        Device(
            resource,
            device["ID"],
            bits.of(int(node["ID"]) for node in device["topology"]["nodes"]) if device.get("topology") else None,
            healthy=device["health"] == "Healthy",
        )
        for device in message["devices"]
    ]


def _cpu(id_: int, info: Document, *, guest: Document, node: int) -> Cpu:
    """cAdvisor reports a cache of a single node as the node's cache, not as an uncore cache."""
    caches = sorted({cpu["L3"] for cpu in guest["cpus"].values() if cpu.get("L3")}, key=bits.parse)
    shared = info.get("L3")
    one_per_node = not shared or bits.parse(shared) == bits.parse(guest["nodes"][str(node)]["cpulist"])
    return Cpu(
        id=id_,
        core=next(bits.members(bits.parse(info["thread_siblings_list"]))),
        socket=int(info["physical_package_id"]),
        node=node,
        cache=None if one_per_node else caches.index(shared),
    )


def _node(id_: int, info: Document, pages_set: int | None) -> NumaNode:
    """Pages that were set are of 2 MiB; what the kernel counts is what it could find of them."""
    pages = []
    for name, count in info["hugepages"].items():
        size = int(name.removeprefix("hugepages-").removesuffix("kB")) * 1024
        asked = pages_set if size == 2 << 20 else None
        pages.append(HugePages(size=size, count=count["nr_hugepages"] if asked is None else asked))
    return NumaNode(id_, memory=info["MemTotal_kB"] * 1024, hugepages=tuple(pages))
