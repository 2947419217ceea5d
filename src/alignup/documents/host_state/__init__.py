"""``HostState``, the object in which the observer of a node says what its kubelet holds. It is ours, not Kubernetes'.

``schema`` has the documents, their limits and names, ``writer`` makes them of machines and ledgers, and ``reader``
makes reports of them for placement.
"""

from alignup.documents.host_state.schema import GROUP, HostStateDocument, HostStateObject, staleness

__all__ = ["GROUP", "HostStateDocument", "HostStateObject", "staleness"]
