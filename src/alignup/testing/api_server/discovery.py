"""The documents by which clients such as kubectl find out what a server has."""

from collections.abc import Iterator, Mapping
from typing import Any

from alignup.testing.api_server.store import Document, ServedResource

_HEALTH = ("/healthz", "/livez", "/readyz")
_VERBS = ("create", "delete", "get", "list", "patch", "update", "watch")


def document(path: str, resources: Mapping[Any, ServedResource], version: str) -> Document | bytes | None:
    """What a path that is none of objects has; ``None``: nothing."""
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
            groups = sorted({one.group for one in served if one.group})
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(name, served) for name in groups]}
        case ["apis", group, number]:
            return _resources(f"{group}/{number}", served)
    return b"ok" if path in _HEALTH else None


def defined_resources(definition: Document) -> Iterator[ServedResource]:
    """The resources that a CustomResourceDefinition defines."""
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
    numbers = sorted({one.version for one in served if one.group == name})
    versions = [{"groupVersion": f"{name}/{number}", "version": number} for number in numbers]
    return {"name": name, "versions": versions, "preferredVersion": versions[-1]}


def _resources(api_version: str, served: list[ServedResource]) -> Document | None:
    found = [
        {
            "name": one.plural,
            "singularName": one.kind.lower(),
            "namespaced": one.namespaced,
            "kind": one.kind,
            "verbs": list(_VERBS),
        }
        for one in served
        if one.api_version == api_version
    ]
    if not found:
        return None
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": found}
