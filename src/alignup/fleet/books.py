"""The ledgers of the three providers every host has, by name and with their types."""

from typing import NamedTuple

from alignup.align.cpus.ledger import CpuLedger
from alignup.align.devices import DeviceLedger
from alignup.align.ledger import Ledger
from alignup.align.memory.ledger import MemoryLedger


class Books(NamedTuple):
    """Who holds which CPUs, memory and devices."""

    cpus: CpuLedger
    memory: MemoryLedger
    devices: DeviceLedger


def books(ledger: Ledger) -> Books:
    """The three of *ledger*; those of providers that joined a host are left out."""
    own = ledger.books
    return Books(own["cpu"], own["memory"], own["device"])
