"""The Kubernetes API over HTTP: access, a typed client, informers and leader election.

    async with ApiClient(find_access()) as client:
        for pod in (await client.list(PODS, UNFINISHED_PODS)).items:
            print(pod.metadata.name, pod.spec.node_name)

Objects are decoded as structs that have only the fields Alignup reads.
"""

from alignup.kubeapi.access import Access, find_access
from alignup.kubeapi.client import ApiClient, EventType, ObjectPage, PatchType, ServerVersion, WatchEvent
from alignup.kubeapi.informer import Change, Informer
from alignup.kubeapi.leader_election import LeaderElection
from alignup.kubeapi.resource import (
    ALL,
    LEASES,
    NODE_RESOURCE_TOPOLOGIES,
    NODES,
    PODS,
    UNFINISHED_PODS,
    ObjectRef,
    Query,
    Resource,
)
from alignup.kubeapi.timing import Timing

__all__ = [
    "ALL",
    "LEASES",
    "NODES",
    "NODE_RESOURCE_TOPOLOGIES",
    "PODS",
    "UNFINISHED_PODS",
    "Access",
    "ApiClient",
    "Change",
    "EventType",
    "Informer",
    "LeaderElection",
    "ObjectPage",
    "ObjectRef",
    "PatchType",
    "Query",
    "Resource",
    "ServerVersion",
    "Timing",
    "WatchEvent",
    "find_access",
]
