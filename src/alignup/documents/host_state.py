"""``HostState`` of ``alignup.dev/v1alpha1``: what the kubelet of one node holds, as an object of the Kubernetes API.

The object is named after its node and has no namespace. ``machine`` and ``configuration`` change rarely, ``ledger``
with every pod. It is small, since a cluster has thousands of them: a pod has its name, what it counts for, and what it
holds exclusively, but not its spec; fields with default values are left out.
"""

from typing import Any

from alignup.documents.codec import Count, Document, LinuxList
from alignup.documents.ledgers import CpuHoldings, MemoryHoldings

GROUP, VERSION, KIND, PLURAL = "alignup.dev", "v1alpha1", "HostState", "hoststates"

_NO_CPUS, _NO_MEMORY = CpuHoldings(), MemoryHoldings()


class HostStateMetadata(Document, frozen=True, omit_defaults=True, kw_only=True):
    name: str = ""
    namespace: str = ""  #: always empty
    uid: str = ""
    resource_version: str = ""


class HeldResourcesDocument(Document, frozen=True, omit_defaults=True, kw_only=True):
    """A pod that the kubelet has admitted, and what it holds."""

    uid: str
    namespace: str = ""  #: empty: the name is unknown
    name: str = ""
    priority: int = 0
    requests: dict[str, str] = {}  #: what it counts for in the fit check; quantities
    cpus: CpuHoldings = _NO_CPUS
    memory: MemoryHoldings = _NO_MEMORY
    devices: dict[str, dict[str, list[str]]] = {}  #: container → resource → ids


class DeviceGroupDocument(Document, frozen=True, omit_defaults=True, kw_only=True):
    """Devices of one resource on the same NUMA nodes."""

    resource: str
    ids: list[str]
    nodes: LinuxList | None = None  #: ``None``: no topology
    healthy: bool = True


class HostLedgerDocument(Document, frozen=True, omit_defaults=True, kw_only=True):
    pods: list[HeldResourcesDocument] = []
    devices: list[DeviceGroupDocument] = []
    resources: dict[str, bool] = {}  #: resources without a device → whether a plugin has registered them
    lost_cpus: LinuxList = ""  #: CPUs that are neither shared nor held
    #: NUMA node → type → bytes reserved there, for nodes in a group: it depends on which pods came and went before
    group_memory: dict[int, dict[str, Count]] = {}


class HostStateDocument(Document, frozen=True, omit_defaults=True, kw_only=True):
    metadata: HostStateMetadata = HostStateMetadata()
    observed_at: str = ""  #: when the observer last found it so, in UTC; renewed every few minutes
    generation: Count = 0  #: rises with every change, but not with ``observed_at``
    machine_generation: Count = 0  #: the generation in which the machine or the configuration changed last
    kubelet: str = ""  #: changes when the kubelet restarts
    machine: dict[str, Any] = {}  #: ``machine/v1``, without PCI devices and devices of plugins
    configuration: dict[str, Any] = {}  #: a KubeletConfiguration with the fields that affect alignment
    ledger: HostLedgerDocument | None = None  #: ``None``: unknown, see ``problems``
    problems: list[str] = []  #: what is unknown, and where the kubelet contradicts itself
