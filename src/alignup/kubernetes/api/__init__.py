"""The Kubernetes API over HTTP: access, a typed client, informers and leader election.

    async with ApiClient(find_access()) as client:
        for pod in (await client.list(PODS, UNFINISHED_PODS)).items:
            print(pod.metadata.name, pod.spec.node_name)

Objects are decoded as structs that have only the fields Alignup reads.
"""

from alignup.kubernetes.api.access import Access, find_access
from alignup.kubernetes.api.client import ApiClient, EventType, ObjectPage, PatchType, ServerVersion, WatchEvent
from alignup.kubernetes.api.informer import Change, Informer
from alignup.kubernetes.api.leader_election import LeaderElection
from alignup.kubernetes.api.resource import (
    ALL,
    LEASES,
    NODE_RESOURCE_TOPOLOGIES,
    NODES,
    PODS,
    UNFINISHED_PODS,
    WORKLOADS,
    ObjectRef,
    Query,
    Resource,
)
from alignup.kubernetes.api.timing import Timing

__all__ = [
    "ALL",
    "LEASES",
    "NODES",
    "NODE_RESOURCE_TOPOLOGIES",
    "PODS",
    "UNFINISHED_PODS",
    "WORKLOADS",
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
