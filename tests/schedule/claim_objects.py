"""Objects of Dynamic Resource Allocation for tests, and a DRA plugin of a scheduler that allocates devices."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from alignup.align.claims.allocation import allocate
from alignup.align.claims.resource_claims import ClaimObjects, SliceDevice, usable_devices
from alignup.align.workload import Pod, PodClaim
from alignup.align.workload.names import CLAIMS_ANNOTATION
from alignup.documents.codec import convert
from alignup.kubernetes.manifests.claims import (
    DeviceClassObject,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
    claim_from,
    device_class_from,
    slices_from,
    template_from,
)
from alignup.kubernetes.manifests.device_selectors import FileSelectors
from alignup.kubernetes.manifests.pod_decoder import read_pod
from alignup.testing.api_server import ApiServer

DRIVER = "gpu.example.com"
VERSION = "resource.k8s.io/v1"
Document = dict[str, Any]

_LIST = str(list(range(22)))
#: It takes more than 10,000 steps, at which the library raises an error; API servers and schedulers accept it.
ENDLESS_SELECTOR = f"{_LIST}.all(a, {_LIST}.all(b, {_LIST}.all(c, true)))"


def device_class(name: str = "gpu", *, extended: str = "", selector: str = "") -> Document:
    spec: Document = {"selectors": [{"cel": {"expression": selector or f'device.driver == "{DRIVER}"'}}]}
    if extended:
        spec["extendedResourceName"] = extended
    return {"apiVersion": VERSION, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def resource_slice(node: str, numa_nodes: Sequence[int | None] = (0, 1), *, name: str = "", **spec: Any) -> Document:
    """A slice with a device on each of *numa_nodes* (``None``: unknown), for one node unless *spec* says otherwise."""
    devices = []
    for number, numa_node in enumerate(numa_nodes):
        attributes = {} if numa_node is None else {"resource.kubernetes.io/numaNode": {"int": numa_node}}
        devices.append({"name": f"gpu-{number}", "attributes": attributes})
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    made = {"driver": DRIVER, "pool": pool, "devices": devices} | ({"nodeName": node} if node else {}) | spec
    metadata = {"name": name or f"slice-{node}"}
    return {"apiVersion": VERSION, "kind": "ResourceSlice", "metadata": metadata, "spec": made}


def _spec(count: int, class_name: str, selector: str = "") -> Document:
    exactly: Document = {"deviceClassName": class_name, "count": count}
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}


def template(name: str = "gpus", *, count: int = 1, class_name: str = "gpu", selector: str = "") -> Document:
    metadata = {"name": name, "namespace": "default"}
    spec = {"spec": _spec(count, class_name, selector)}
    return {"apiVersion": VERSION, "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": spec}


def claim(name: str, devices: Sequence[str] = (), node: str = "", *, count: int = 1, uid: str = "") -> Document:
    """A claim, allocated to *devices* of the pool of *node* if given."""
    metadata = {"name": name, "namespace": "default"}
    document: Document = {"apiVersion": VERSION, "kind": "ResourceClaim", "metadata": metadata}
    document["spec"] = _spec(count, "gpu")
    if devices:
        document["status"] = {"allocation": allocation(devices, node)}
        if uid:
            document["status"]["reservedFor"] = [{"resource": "pods", "name": uid, "uid": uid}]
    return document


def allocation(devices: Sequence[str], node: str) -> Document:
    results = [{"request": "gpu", "driver": DRIVER, "pool": node, "device": device} for device in devices]
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]}}


def claiming(pod: Pod, *, claim: str = "", template: str = "", preference: str = "") -> Pod:
    """A pod whose first container uses a claim, by default one from the template ``gpus``."""
    named = PodClaim("gpu", claim, "" if claim else template or "gpus")
    first, *others = pod.containers
    first = replace(first, resources=replace(first.resources, claims=("gpu",)))
    annotations = {CLAIMS_ANNOTATION: preference} if preference else {}
    return replace(pod, claims=(named,), containers=(first, *others), annotations={**pod.annotations, **annotations})


class DraPlugin:
    """The DRA plugin of a scheduler, and the controller that makes claims of templates."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    def objects(self) -> ClaimObjects:
        read = self._server.objects
        claims = [claim_from(convert(each, ResourceClaim)) for each in read("resourceclaims")]
        templates = [template_from(convert(each, ResourceClaimTemplate)) for each in read("resourceclaimtemplates")]
        classes = [device_class_from(convert(each, DeviceClassObject)) for each in read("deviceclasses")]
        return ClaimObjects(
            {each.name: each for each in classes},
            {(each.namespace, each.name): each for each in claims},
            {(each.namespace, each.name): each for each in templates},
        )

    def devices(self, node: str) -> tuple[SliceDevice, ...]:
        slices = [part for each in self._server.objects("resourceslices") for part in _parts(each)]
        return usable_devices(slices, reachable=lambda part: part.host in ("", node))[0]

    def claims(self, document: Document) -> list[str] | None:
        """The names of the claims of a pod, made of templates where needed; ``None``: one is missing."""
        names = []
        known = self.objects()
        claims = read_pod(document).claims
        for named in claims:
            name = named.claim or f"{document['metadata']['name']}-{named.name}"
            if ("default", name) not in known.claims:
                made = known.templates.get(("default", named.template))
                if made is None:
                    return None
                (template,) = [
                    each
                    for each in self._server.objects("resourceclaimtemplates")
                    if each["metadata"]["name"] == named.template
                ]
                metadata = {"name": name, "namespace": "default"}
                kind = {"apiVersion": VERSION, "kind": "ResourceClaim"}
                self._server.put({**kind, "metadata": metadata, "spec": template["spec"]["spec"]})
            names.append(name)
        statuses = [{"name": each.name, "resourceClaimName": name} for each, name in zip(claims, names, strict=True)]
        status = document.get("status", {})
        if names and status.get("resourceClaimStatuses") != statuses:
            self._server.put({**document, "status": {**status, "resourceClaimStatuses": statuses}})
        return names

    def allocations(self, names: Sequence[str], node: str) -> dict[str, Document] | None:
        """What the claims of a pod would get on a node; ``None``: nothing suitable."""
        objects = self.objects()
        claims = [objects.claims["default", name] for name in names]
        if any(each.allocated is not None and each.host not in ("", node) for each in claims):
            return None
        wanting = [each for each in claims if each.allocated is None]
        devices = allocate(wanting, self.devices(node), matches=FileSelectors(objects), taken_ids=objects.taken())
        if devices is None:
            return None
        chosen = {each.name: given for each, given in zip(wanting, devices, strict=True)}
        return {name: allocation([each.id.device for each in given], node) for name, given in chosen.items()}

    def write(self, allocations: dict[str, Document], uid: str) -> None:
        """Write the allocations, as in PreBind."""
        for document in self._server.objects("resourceclaims"):
            name = document["metadata"]["name"]
            if name in allocations:
                reserved = [{"resource": "pods", "name": uid, "uid": uid}]
                self._server.put({**document, "status": {"allocation": allocations[name], "reservedFor": reserved}})


def _parts(document: Document) -> tuple[Any, ...]:
    return slices_from(convert(document, ResourceSlice))
