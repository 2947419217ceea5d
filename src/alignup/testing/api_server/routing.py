"""The resources of an API server: which of them a request is about, and how clients such as kubectl discover them."""

from dataclasses import dataclass

from alignup.testing.api_server.faults import StatusProblem
from alignup.testing.api_server.http_server import HttpRequest
from alignup.testing.api_server.store import Document, ServedResource, StoreKey


def _cluster_wide(kind: str, group: str = "", version: str = "v1", *, status: bool = False) -> ServedResource:
    plural = kind.lower()[:-1] + "ies" if kind.endswith("y") else f"{kind.lower()}s"
    return ServedResource(kind=kind, plural=plural, group=group, version=version, namespaced=False, status=status)


BUILT_IN = (
    ServedResource(kind="Pod", plural="pods", status=True),
    ServedResource(kind="ConfigMap", plural="configmaps"),
    ServedResource(kind="Secret", plural="secrets"),
    ServedResource(kind="Event", plural="events"),
    ServedResource(kind="Lease", plural="leases", group="coordination.k8s.io"),
    ServedResource(kind="PodDisruptionBudget", plural="poddisruptionbudgets", group="policy", status=True),
    ServedResource(kind="ResourceClaim", plural="resourceclaims", group="resource.k8s.io", status=True),
    ServedResource(kind="ResourceClaimTemplate", plural="resourceclaimtemplates", group="resource.k8s.io"),
    ServedResource(kind="DeviceClass", plural="deviceclasses", group="resource.k8s.io", namespaced=False),
    _cluster_wide("ResourceSlice", "resource.k8s.io"),
    _cluster_wide("Node", status=True),
    _cluster_wide("Namespace", status=True),
    _cluster_wide("MutatingWebhookConfiguration", "admissionregistration.k8s.io"),
    _cluster_wide("ValidatingWebhookConfiguration", "admissionregistration.k8s.io"),
    _cluster_wide("NodeResourceTopology", "topology.node.k8s.io", "v1alpha2"),
    _cluster_wide("CustomResourceDefinition", "apiextensions.k8s.io", status=True),
)
_ALL_VERBS = ("create", "delete", "get", "list", "patch", "update", "watch")
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A request about objects."""

    resource: ServedResource
    verb: str
    namespace: str
    name: str
    subresource: str
    request: HttpRequest

    @property
    def key(self) -> StoreKey:
        return self.namespace, self.name

    @property
    def content_type(self) -> str:
        return self.request.headers.get("content-type", "").partition(";")[0]

    @property
    def manager(self) -> str:
        """The field manager, by default the name of the client's program."""
        program = self.request.headers.get("user-agent", "test").partition("/")[0]
        return self.request.parameters.get("fieldManager") or program


class ResourceTable:
    """The resources that a server has."""

    def __init__(self) -> None:
        self._all: dict[tuple[str, str], ServedResource] = {}
        for resource in BUILT_IN:
            self.add(resource)

    def add(self, resource: ServedResource) -> None:
        self._all[resource.api_version, resource.plural] = resource

    def named(self, plural: str) -> ServedResource:
        return next(resource for resource in self._all.values() if resource.plural == plural)

    def of_kind(self, api_version: str, kind: str) -> ServedResource:
        return next(
            resource for resource in self._all.values() if (resource.api_version, resource.kind) == (api_version, kind)
        )

    def parse(self, request: HttpRequest) -> ApiCall | None:
        """Return the call; ``None`` if the path names no API object."""
        match request.path.strip("/").split("/"):
            case ["api", "v1", *rest] if rest:
                version = "v1"
            case ["apis", group, number, *rest] if rest:
                version = f"{group}/{number}"
            case _:
                return None
        namespace = ""
        match rest:
            case ["namespaces", name, plural, *below] if (version, plural) in self._all:
                namespace = name
            case [plural, *below]:
                pass
        resource = self._all.get((version, plural))
        if resource is None:
            raise StatusProblem(404, "the server could not find the requested resource")
        name, subresource = below[0] if below else "", "/".join(below[1:])
        if subresource.startswith("proxy") or subresource == "log":
            return None
        verb = _VERBS.get(request.method, request.method.lower())
        if request.method == "GET":
            watch = request.parameters.get("watch") in {"true", "1"}
            verb = "watch" if watch else "get" if name else "list"
        return ApiCall(resource, verb, namespace, name, subresource, request)

    def add_defined(self, definition: Document) -> None:
        """Serve the resources that a CustomResourceDefinition defines."""
        spec = definition["spec"]
        for version in spec["versions"]:
            if version.get("served", True):
                resource = ServedResource(
                    kind=spec["names"]["kind"],
                    plural=spec["names"]["plural"],
                    group=spec["group"],
                    version=version["name"],
                    namespaced=spec.get("scope") == "Namespaced",
                    status="status" in (version.get("subresources") or {}),
                )
                self.add(resource)

    def discovery_document(self, path: str) -> Document | None:
        """Return what clients such as kubectl read at a path about the resources; ``None``: nothing."""
        match path.strip("/").split("/"):
            case ["api"]:
                return {"kind": "APIVersions", "versions": ["v1"]}
            case ["api", "v1"]:
                return self._resource_list("v1")
            case ["apis"]:
                groups: dict[str, list[Document]] = {}
                for group, number in sorted({(resource.group, resource.version) for resource in self._all.values()}):
                    version = {"groupVersion": f"{group}/{number}", "version": number}
                    groups.setdefault(group, []).append(version)
                group_documents = [
                    {"name": group, "versions": versions, "preferredVersion": versions[-1]}
                    for group, versions in groups.items()
                    if group
                ]
                return {"kind": "APIGroupList", "apiVersion": "v1", "groups": group_documents}
            case ["apis", group, number]:
                return self._resource_list(f"{group}/{number}")
        return None

    def _resource_list(self, api_version: str) -> Document | None:
        resources = [
            {
                "name": resource.plural,
                "singularName": resource.kind.lower(),
                "namespaced": resource.namespaced,
                "kind": resource.kind,
                "verbs": list(_ALL_VERBS),
            }
            for resource in self._all.values()
            if resource.api_version == api_version
        ]
        whole = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": resources}
        return whole if resources else None
