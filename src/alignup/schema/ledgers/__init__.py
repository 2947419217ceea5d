"""A ledger as JSON documents: one entry per pod, and the residue.

An entry changes only when its own pod does, so a checkpoint encodes each pod once. The *residue* is everything else the
ledger records, such as what the last pod's init containers left to reuse. ``restore_ledger`` rebuilds the ledger on the
idle ledger of the host as it is now.
"""

from alignup.schema.ledgers.documents import (
    LedgerDocument,
    PodEntryDocument,
    ResidueDocument,
    ledger_document,
    pod_entry,
    residue,
)
from alignup.schema.ledgers.restore import restore_ledger

__all__ = [
    "LedgerDocument",
    "PodEntryDocument",
    "ResidueDocument",
    "ledger_document",
    "pod_entry",
    "residue",
    "restore_ledger",
]
