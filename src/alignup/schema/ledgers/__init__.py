"""A ledger as a document, in plain JSON values, and back: what a checkpoint is made of.

``write`` takes a ledger apart: a piece for each pod, which stays the same as long as the pod holds the same, and the
*crumbs*, all else the books remember. So whoever stores a ledger again and again has to write down one pod anew, not
all. ``read`` puts it together on the idle ledger of a host as it is now, and refuses what cannot be so any more.
``workload`` is the pod itself.

Sets are Linux lists, ``"0-3,8"``, never integers. The documents have no version of their own: the checkpoint has.
"""

from alignup.schema.ledgers.read import from_document, without_pods
from alignup.schema.ledgers.workload import read_pod, written_pod
from alignup.schema.ledgers.write import crumbs, pod_document, to_document

__all__ = ["crumbs", "from_document", "pod_document", "read_pod", "to_document", "without_pods", "written_pod"]
