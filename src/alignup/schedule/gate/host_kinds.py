"""Kinds of nodes: nodes with the same machine, settings and devices decide alike while they run no pods."""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import NamedTuple
from weakref import WeakValueDictionary

from alignup.align.host import Host
from alignup.kubernetes.api.objects import ApiNode
from alignup.placement.host_model import HostModel
from alignup.placement.host_record import HostRecord
from alignup.placement.verdict import Inventories
from alignup.schedule.live_cluster import LiveCluster


def kind_key(record: HostRecord) -> Hashable:
    """Return a key that is equal for nodes of one kind."""
    devices = record.ledger.devices.inventories
    return record.model, tuple([(name, devices[name].layout) for name in sorted(devices)])


def idle_host(record: HostRecord) -> Host:
    """Return a host as this one would be without pods."""
    host = record.model.at(record.model.host.ledger)
    devices = host.ledger.devices
    for resource, inventory in record.ledger.devices.inventories.items():
        devices = devices.announce(resource, inventory.devices, preferred_allocation=inventory.preferred_allocation)
    host.ledger = replace(host.ledger, devices=devices)
    return host


@dataclass(eq=False, frozen=True, slots=True, weakref_slot=True)
class HostKind:
    """One kind; there is one object for each, compared by identity."""

    host: Host  #: without pods


class _KnownNode(NamedTuple):
    model: HostModel
    devices: Inventories
    kind: HostKind


class HostKinds:
    """The kinds of all nodes of a cluster; the kind of a node is kept until its machine, settings or devices change."""

    def __init__(self, live: LiveCluster) -> None:
        self._live = live
        self._known_nodes: dict[str, _KnownNode] = {}
        self._kinds: WeakValueDictionary[Hashable, HostKind] = WeakValueDictionary()

    def nodes(self) -> dict[HostKind | None, list[ApiNode]]:
        """Return the nodes of each kind; under ``None`` the nodes whose state is not known exactly."""
        nodes: dict[HostKind | None, list[ApiNode]] = {}
        objects = self._live.nodes.objects
        for (_, name), node in objects.items():
            nodes.setdefault(self._kind(name), []).append(node)
        if len(self._known_nodes) > 2 * len(objects):
            self._known_nodes = {
                name: known_node for name, known_node in self._known_nodes.items() if ("", name) in objects
            }
        return nodes

    def _kind(self, name: str) -> HostKind | None:
        record = self._live.cluster.record(name)
        if record is None or record.report.approximate:
            return None
        devices, known_node = record.ledger.devices.inventories, self._known_nodes.get(name)
        if known_node is None or known_node.model is not record.model or known_node.devices is not devices:
            key = kind_key(record)
            kind = self._kinds.get(key)
            if kind is None:
                kind = self._kinds[key] = HostKind(idle_host(record))
            known_node = self._known_nodes[name] = _KnownNode(record.model, devices, kind)
        return known_node.kind
