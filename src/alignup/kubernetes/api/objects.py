"""Kubernetes objects, with only the fields that Alignup reads.

Decoding skips everything else, which makes large lists fast and small. Names are Kubernetes' own with underscores;
timestamps stay strings.
"""

from typing import Any, Protocol

import msgspec

from alignup.kubernetes.manifests.disruption import OwnerReference
from alignup.kubernetes.manifests.node_selectors import NodeSelector
from alignup.kubernetes.manifests.pod_decoder import (
    Labels,
    NamedItem,
    ObjectPart,
    PodCondition,
    PodMetadata,
    PodObject,
    PodSpec,
    PodStatus,
    ReportedContainer,
    ResourceAmounts,
)

Amount = str | int | float  #: a quantity; API servers send strings, custom resources may have numbers

#: The whole object once more, as text; nothing reads it, and it can be the largest part of an object.
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class Metadata(Protocol):
    """What identifies an object and its version."""

    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def resource_version(self) -> str: ...


class ApiObject(Protocol):
    """Any msgspec struct with metadata."""

    @property
    def metadata(self) -> Metadata: ...


class ObjectMeta(PodMetadata, frozen=True):
    """The metadata of an object, without managed fields."""

    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    owner_references: tuple[OwnerReference, ...] = ()

    def __post_init__(self) -> None:
        if self.annotations:
            self.annotations.pop(_LAST_APPLIED, None)

    @property
    def full_name(self) -> str:
        """``NAMESPACE/NAME``, of an object in a namespace."""
        return f"{self.namespace}/{self.name}"


class PartialObject(ObjectPart, frozen=True):
    """An object of any kind, with its metadata only."""

    metadata: ObjectMeta = ObjectMeta()


class Condition(PodCondition, frozen=True):
    status: str = ""  #: True, False or Unknown
    message: str = ""
    last_transition_time: str | None = None


# Pods


class PreferredTerm(ObjectPart, frozen=True):
    """A preferred term of an affinity; its contents do not matter here."""

    weight: int = 0


_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class NodeAffinity(ObjectPart, frozen=True):
    """Which nodes a pod may be scheduled to, and whether it prefers some of them."""

    required: NodeSelector | None = msgspec.field(name=_REQUIRED, default=None)
    preferred: tuple[PreferredTerm, ...] = msgspec.field(name=_PREFERRED, default=())


class InterPodAffinity(ObjectPart, frozen=True):
    """Whether a pod must be near other pods or far from them, or prefers to be."""

    required: tuple[PreferredTerm, ...] = msgspec.field(name=_REQUIRED, default=())
    preferred: tuple[PreferredTerm, ...] = msgspec.field(name=_PREFERRED, default=())


class PodAffinity(ObjectPart, frozen=True):
    """The affinity of a pod; the terms of its affinity to other pods are left out."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: InterPodAffinity | None = None
    pod_anti_affinity: InterPodAffinity | None = None


class TopologySpreadConstraint(ObjectPart, frozen=True):
    """How evenly pods are spread, which a scheduler requires or prefers."""

    when_unsatisfiable: str = ""  #: DoNotSchedule, or ScheduleAnyway: a preference


class Toleration(ObjectPart, frozen=True):
    key: str = ""
    operator: str = ""  #: Exists, Equal; empty: Equal
    value: str = ""
    effect: str = ""


class PodSchedulingGroup(ObjectPart, frozen=True):
    """The PodGroup whose pods are scheduled together."""

    pod_group_name: str = ""


class ApiPodSpec(PodSpec, frozen=True):
    node_name: str = ""
    restart_policy: str = ""
    scheduler_name: str = ""  #: of pods of the API server never empty
    scheduling_gates: tuple[NamedItem, ...] = ()
    scheduling_group: PodSchedulingGroup | None = None
    node_selector: Labels = {}
    affinity: PodAffinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()


class TerminatedState(ObjectPart, frozen=True):
    exit_code: int = 0


class ApiContainerState(ObjectPart, frozen=True):
    """The state of a container; ``terminated`` is ``None`` unless it has ended."""

    terminated: TerminatedState | None = None


class ApiContainerStatus(ReportedContainer, frozen=True):
    """The status of a container, with the resources that the kubelet has allocated to it."""

    state: ApiContainerState = ApiContainerState()


class ApiPodStatus(PodStatus, frozen=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ApiContainerStatus, ...] = ()
    init_container_statuses: tuple[ApiContainerStatus, ...] = ()


class ApiPod(PodObject, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ApiPodSpec = ApiPodSpec()
    status: ApiPodStatus = ApiPodStatus()

    @property
    def finished(self) -> bool:
        """Whether the pod has ended and holds nothing."""
        return self.status.phase in {"Succeeded", "Failed"}


# Nodes


class Taint(ObjectPart, frozen=True):
    key: str
    effect: str
    value: str = ""


class NodeAddress(ObjectPart, frozen=True):
    type: str
    address: str


class NodeInfo(ObjectPart, frozen=True):
    kubelet_version: str = ""
    boot_id: str = msgspec.field(name="bootID", default="")


class ApiNodeSpec(ObjectPart, frozen=True):
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class ApiNodeStatus(ObjectPart, frozen=True):
    allocatable: ResourceAmounts = {}
    capacity: ResourceAmounts = {}
    conditions: tuple[Condition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()
    node_info: NodeInfo = NodeInfo()


class ApiNode(ObjectPart, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ApiNodeSpec = ApiNodeSpec()
    status: ApiNodeStatus = ApiNodeStatus()


# Leases


class LeaseSpec(ObjectPart, frozen=True):
    """Who holds a lease; ``renew_time`` is by the holder's clock."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class WorkloadObject(ObjectPart, frozen=True):
    """An object that creates pods, such as a Deployment."""

    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}


class Lease(ObjectPart, frozen=True):
    """A lock that its holder must renew."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()


# NodeResourceTopology of version v1alpha2


class TopologyAttribute(ObjectPart, frozen=True):
    """A named value, such as the Topology Manager's policy."""

    name: str
    value: str


class ZoneCost(ObjectPart, frozen=True):
    name: str
    value: int


class ZoneResource(ObjectPart, frozen=True):
    name: str
    capacity: Amount
    allocatable: Amount
    available: Amount


class TopologyZone(ObjectPart, frozen=True):
    """A NUMA node, called ``node-0`` and so on, if its type is ``Node``."""

    name: str
    type: str
    parent: str = ""
    costs: tuple[ZoneCost, ...] = ()
    attributes: tuple[TopologyAttribute, ...] = ()
    resources: tuple[ZoneResource, ...] = ()


class NodeResourceTopology(ObjectPart, frozen=True):
    """The NUMA nodes of a Kubernetes node, which has the same name."""

    metadata: ObjectMeta = ObjectMeta()
    topology_policies: tuple[str, ...] = ()
    attributes: tuple[TopologyAttribute, ...] = ()
    zones: tuple[TopologyZone, ...] = ()
