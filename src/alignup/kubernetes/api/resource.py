"""Resources of the API (pods, nodes, custom resources), queries for their objects, and requests."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from urllib.parse import quote

from alignup.kubernetes.api.objects import ApiNode, ApiObject, ApiPod, Lease, NodeResourceTopology, WorkloadObject

Object = TypeVar("Object", bound=ApiObject)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource(Generic[Object]):
    """A resource of the API, and the msgspec struct that its objects are decoded as.

    A struct that has no fields but those Alignup reads makes lists fast; unknown fields are skipped.
    """

    type: type[Object]
    kind: str
    plural: str
    version: str = "v1"
    group: str = ""  #: empty: the core group
    namespaced: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self) -> str:
        """The name in messages, as kubectl accepts it: ``pods``, ``leases.coordination.k8s.io``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str = "") -> str:
        """Return the URL path of all objects; without *namespace* of all namespaces."""
        parts = ["", "apis" if self.group else "api", self.api_version]
        parts += ["namespaces", quote(namespace, safe="")] if namespace and self.namespaced else []
        return "/".join([*parts, self.plural])

    def at(self, name: str, *, namespace: str = "", subresource: str = "") -> "ObjectRef[Object]":
        """Return a reference to one object."""
        if bool(namespace) is not self.namespaced:
            rule = "needs a namespace" if self.namespaced else "has no namespace"
            raise ValueError(f"{self.kind} {name} {rule}")
        return ObjectRef(self, name, namespace=namespace, subresource=subresource)

    def of(self, obj: Object, *, subresource: str = "") -> "ObjectRef[Object]":
        """Return a reference to *obj*, and to no other object that has the same name later."""
        metadata = obj.metadata
        return ObjectRef(self, metadata.name, namespace=metadata.namespace, subresource=subresource, uid=metadata.uid)


@dataclass(frozen=True, slots=True)
class ObjectRef(Generic[Object]):
    """One object of a resource, or a subresource of the object; the object need not exist."""

    resource: Resource[Object]
    name: str
    namespace: str = ""
    subresource: str = ""
    uid: str = ""  #: empty: any

    @property
    def path(self) -> str:
        parts = [self.resource.path(self.namespace), quote(self.name, safe="")]
        return "/".join([*parts, self.subresource] if self.subresource else parts)

    def __str__(self) -> str:
        subresource = f"/{self.subresource}" if self.subresource else ""
        return f"{self.resource.full_name}{subresource} {self.namespace}{self.namespace and '/'}{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which objects to list or watch."""

    namespace: str = ""  #: empty: all
    labels: str = ""  #: a label selector, such as ``app=web,tier!=db``
    fields: str = ""  #: a field selector, such as ``spec.nodeName=host-a``

    @property
    def parameters(self) -> dict[str, str]:
        selectors = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {name: selector for name, selector in selectors.items() if selector}


MAX_BODY = 1 << 30  #: bytes of a response after decompression, watches excepted: all pods of a large cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """One request; ``description`` is for messages."""

    description: str
    path: str
    method: str = "GET"
    parameters: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = "application/json"
    accept: str = "application/json"
    repeat: bool = True  #: whether to repeat it when the API server throttles it
    max_bytes: int = MAX_BODY  #: of the response, after decompression
    idempotent: bool = False  #: whether carrying it out twice does no harm; always true for GET


ALL = Query()
UNFINISHED_PODS = Query(fields="status.phase!=Succeeded,status.phase!=Failed")

PODS = Resource(type=ApiPod, kind="Pod", plural="pods", namespaced=True)
NODES = Resource(type=ApiNode, kind="Node", plural="nodes")
LEASES = Resource(type=Lease, kind="Lease", plural="leases", group="coordination.k8s.io", namespaced=True)
#: Kind → the resource, for the built-in kinds that create pods.
WORKLOADS = {
    kind: Resource(type=WorkloadObject, kind=kind, plural=f"{kind.lower()}s", group=group, namespaced=True)
    for group, kinds in {
        "": ("ReplicationController",),
        "apps": ("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"),
        "batch": ("CronJob", "Job"),
    }.items()
    for kind in kinds
}
NODE_RESOURCE_TOPOLOGIES = Resource(
    type=NodeResourceTopology,
    kind="NodeResourceTopology",
    plural="noderesourcetopologies",
    group="topology.node.k8s.io",
    version="v1alpha2",
)
