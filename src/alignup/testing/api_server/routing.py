"""The resources of an API server: which of them a request is about, and how clients such as kubectl discover them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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
    _cluster_wide("Node", status=True),
    _cluster_wide("Namespace", status=True),
    _cluster_wide("MutatingWebhookConfiguration", "admissionregistration.k8s.io"),
    _cluster_wide("NodeResourceTopology", "topology.node.k8s.io", "v1alpha2"),
    _cluster_wide("CustomResourceDefinition", "apiextensions.k8s.io", status=True),
)
_HEALTH = ("/healthz", "/livez", "/readyz")
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
    def parameters(self) -> Mapping[str, str]:
        return self.request.parameters

    @property
    def content_type(self) -> str:
        return self.request.headers.get("content-type", "").partition(";")[0]

    @property
    def manager(self) -> str:
        """The field manager, by default the name of the client's program."""
        return self.parameters.get("fieldManager") or self.request.headers.get("user-agent", "test").partition("/")[0]


class ResourceTable:
    """The resources that a server has."""

    def __init__(self, resources: Iterable[ServedResource] = BUILT_IN) -> None:
        self.all = {(resource.api_version, resource.plural): resource for resource in resources}

    def add(self, resource: ServedResource) -> None:
        self.all[resource.api_version, resource.plural] = resource

    def named(self, plural: str) -> ServedResource:
        return next(resource for resource in self.all.values() if resource.plural == plural)

    def of_kind(self, api_version: str, kind: str) -> ServedResource:
        return next(
            resource for resource in self.all.values() if (resource.api_version, resource.kind) == (api_version, kind)
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
            case ["namespaces", name, plural, *below] if (version, plural) in self.all:
                namespace = name
            case [plural, *below]:
                pass
        resource = self.all.get((version, plural))
        if resource is None:
            raise StatusProblem(404, "the server could not find the requested resource")
        name, subresource = below[0] if below else "", "/".join(below[1:])
        if subresource.startswith("proxy"):
            return None
        return ApiCall(resource, _verb(request, name), namespace, name, subresource, request)


def _verb(request: HttpRequest, name: str) -> str:
    if request.method == "GET":
        watch = request.parameters.get("watch") in {"true", "1"}
        return "watch" if watch else "get" if name else "list"
    return _VERBS.get(request.method, request.method.lower())


def discovery_document(path: str, resources: Mapping[Any, ServedResource], version: str) -> Document | bytes | None:
    """Return what a path has that names no API object; ``None``: nothing."""
    served = list(resources.values())
    match path.strip("/").split("/"):
        case ["version"]:
            major, minor = version.split(".")
            return {"major": major, "minor": minor, "gitVersion": f"v{version}.0", "platform": "linux/amd64"}
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"]}
        case ["api", "v1"]:
            return _resources("v1", served)
        case ["apis"]:
            groups = sorted({resource.group for resource in served if resource.group})
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(name, served) for name in groups]}
        case ["apis", group, number]:
            return _resources(f"{group}/{number}", served)
    return b"ok" if path in _HEALTH else None


def defined_resources(definition: Document) -> Iterator[ServedResource]:
    """Yield the resources that a CustomResourceDefinition defines."""
    spec = definition["spec"]
    for version in spec["versions"]:
        if version.get("served", True):
            yield ServedResource(
                kind=spec["names"]["kind"],
                plural=spec["names"]["plural"],
                group=spec["group"],
                version=version["name"],
                namespaced=spec.get("scope") == "Namespaced",
                status="status" in (version.get("subresources") or {}),
            )


def _group(name: str, served: list[ServedResource]) -> Document:
    numbers = sorted({resource.version for resource in served if resource.group == name})
    versions = [{"groupVersion": f"{name}/{number}", "version": number} for number in numbers]
    return {"name": name, "versions": versions, "preferredVersion": versions[-1]}


def _resources(api_version: str, served: list[ServedResource]) -> Document | None:
    listed = [
        {
            "name": resource.plural,
            "singularName": resource.kind.lower(),
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": list(_ALL_VERBS),
        }
        for resource in served
        if resource.api_version == api_version
    ]
    if not listed:
        return None
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": listed}
