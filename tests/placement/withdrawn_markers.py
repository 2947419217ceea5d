"""A kubelet without the markers of some NUMA nodes, as while it admits a steered pod."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from alignup.align.bits import NodeSet
from alignup.align.host import Host
from alignup.align.workload.names import MARKER
from alignup.placement.steered import withdraw_markers


@contextmanager
def only_markers_on(nodes: NodeSet, host: Host) -> Iterator[None]:
    """Withdraw the markers that are not on *nodes*; with no nodes, none is withdrawn."""
    ledger = host.ledger
    host.ledger = withdraw_markers(ledger, nodes)
    yield
    devices = host.ledger.devices.with_inventory(MARKER, ledger.devices.inventories[MARKER])
    host.ledger = replace(host.ledger, devices=devices)
