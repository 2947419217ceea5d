"""Which resource and verb a request is about."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from alignup.testing.api_server.http_server import HttpRequest
from alignup.testing.api_server.problems import StatusProblem
from alignup.testing.api_server.store import ServedResource, StoreKey

BUILT_IN = (
    ServedResource(kind="Pod", plural="pods", status=True),
    ServedResource(kind="Node", plural="nodes", namespaced=False, status=True),
    ServedResource(kind="Namespace", plural="namespaces", namespaced=False, status=True),
    ServedResource(kind="ConfigMap", plural="configmaps"),
    ServedResource(kind="Secret", plural="secrets"),
    ServedResource(kind="Event", plural="events"),
    ServedResource(kind="Lease", plural="leases", group="coordination.k8s.io"),
    ServedResource(kind="PodDisruptionBudget", plural="poddisruptionbudgets", group="policy", status=True),
    ServedResource(
        kind="MutatingWebhookConfiguration",
        plural="mutatingwebhookconfigurations",
        group="admissionregistration.k8s.io",
        namespaced=False,
    ),
    ServedResource(
        kind="NodeResourceTopology",
        plural="noderesourcetopologies",
        group="topology.node.k8s.io",
        version="v1alpha2",
        namespaced=False,
    ),
    ServedResource(
        kind="CustomResourceDefinition",
        plural="customresourcedefinitions",
        group="apiextensions.k8s.io",
        namespaced=False,
        status=True,
    ),
)

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
        self.all = {(one.api_version, one.plural): one for one in resources}

    def add(self, resource: ServedResource) -> None:
        self.all[resource.api_version, resource.plural] = resource

    def named(self, plural: str) -> ServedResource:
        return next(one for one in self.all.values() if one.plural == plural)

    def of_kind(self, api_version: str, kind: str) -> ServedResource:
        return next(one for one in self.all.values() if (one.api_version, one.kind) == (api_version, kind))

    def parse(self, request: HttpRequest) -> ApiCall | None:
        """The call; ``None`` if the path is none of objects."""
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
