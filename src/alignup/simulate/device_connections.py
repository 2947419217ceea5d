"""How well the devices of admitted pods are connected below the NUMA node; see ``align.explain.device_choices``."""

from collections.abc import Iterable, Mapping

from alignup.align.explain.device_choices import Connections, connections
from alignup.align.machine import Machine
from alignup.documents.codec import Count, Document


class ConnectionCounts(Document, frozen=True):
    """The containers of admitted pods with several GPUs, or with GPU and NIC."""

    connected: Count = 0  #: a link or a PCIe switch connects each two GPUs
    apart: Count = 0
    paired: Count = 0  #: each GPU has a NIC below its root complex
    unpaired: Count = 0
    unknown: Count = 0  #: the machine cannot say

    @classmethod
    def of(cls, entries: Iterable[Connections]) -> "ConnectionCounts":
        every = list(entries)
        gpus, nics = [entry.connected for entry in every], [entry.paired for entry in every]
        unknown = sum(entry.unknown for entry in every)
        return cls(gpus.count(True), gpus.count(False), nics.count(True), nics.count(False), unknown)


NO_CONNECTIONS = ConnectionCounts()


def container_connections(machine: Machine, devices: Iterable[Mapping[str, tuple[str, ...]]]) -> Iterable[Connections]:
    """Return how near the devices of containers are; nothing for a machine without PCI devices."""
    return [connections(machine.locality, ids) for ids in devices if ids] if machine.pci else ()


def figures(counts: Iterable[ConnectionCounts]) -> dict[str, list[int]]:
    """Return the name of each figure that any of *counts* has, and its values."""
    names = {
        "connected": "GPUs of a container linked or under switches",
        "apart": "GPUs of a container apart",
        "paired": "GPU and NIC under one root complex",
        "unpaired": "GPU and NIC under different root complexes",
        "unknown": "distance of GPUs or NICs unknown",
    }
    columns = list(counts)
    values = {text: [getattr(column, name) for column in columns] for name, text in names.items()}
    return {text: column for text, column in values.items() if any(column)}
