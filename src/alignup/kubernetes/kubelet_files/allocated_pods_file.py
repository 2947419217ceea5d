"""``allocated_pods_state``: the requests and limits that the kubelet has admitted, for every pod with its uid.

The kubelet writes it last in an admission, and only if the pod is admitted. After a resize in place it differs from the
pod's spec, and it is what the kubelet counts with. An ended pod stays in the file until the next admission.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from alignup.align.bits import quote
from alignup.align.errors import QuantityError, StateError
from alignup.align.quantity import Quantity
from alignup.align.workload import Resources
from alignup.kubernetes.kubelet_files.checkpoint import CHECKSUM, CORRUPT, data_checksum_text, fnv1a
from alignup.kubernetes.kubelet_files.go_types import GoField, GoMap, GoString, GoStruct, decode

NAME = "allocated_pods_state"

_TEXT = GoString()
_AMOUNTS = GoMap("v1.ResourceList", _TEXT, _TEXT)
_RESOURCES = GoStruct(
    "v1.ResourceRequirements",
    (
        GoField("limits", "Limits", _AMOUNTS, omit_empty=True),
        GoField("requests", "Requests", _AMOUNTS, omit_empty=True),
    ),
)
_POD = GoStruct.of(
    "state.PodResourceInfo",
    ContainerResources=GoMap("map[string]v1.ResourceRequirements", _TEXT, _RESOURCES),
    PodLevelResources=_RESOURCES,
)
_DATA = GoStruct(
    "state.PodResourceCheckpointInfo",
    (GoField("entries", "Entries", GoMap("state.PodResourceInfoMap", _TEXT, _POD), omit_empty=True),),
)
_FILE = GoStruct("state.Checkpoint", (GoField("data", "Data", _TEXT), CHECKSUM))


@dataclass(frozen=True, slots=True)
class AllocatedPod:
    containers: Mapping[str, Resources] = field(default_factory=dict)  #: by name, init containers included
    resources: Resources = field(default_factory=Resources)  #: of the pod as a whole


AllocatedPods = Mapping[str, AllocatedPod]  #: by uid


def parse(text: bytes, *, path: str) -> AllocatedPods:
    """Decode the file at *path*; ``StateError`` if a kubelet would not start with it."""
    file, error = decode(_FILE, text)
    if error is None and file["checksum"] != fnv1a(data_checksum_text(file["data"])):
        error = CORRUPT
    data: dict[str, Any] = {}
    if error is None:
        data, error = decode(_DATA, file["data"].encode())
    try:
        if error is None:
            return {uid: _pod(pod) for uid, pod in (data["entries"] or {}).items()}
    except QuantityError as wrong:
        error = str(wrong)
    raise StateError(f"could not read the checkpoint file of allocated resources {quote(path)}: {error}")


def dump(pods: AllocatedPods) -> bytes:
    entries = {
        uid: {
            "ContainerResources": {name: _contents(own) for name, own in pod.containers.items()},
            "PodLevelResources": _contents(pod.resources),
        }
        for uid, pod in pods.items()
    }
    data = _DATA.write({"entries": entries})
    return _FILE.write({"data": data, "checksum": fnv1a(data_checksum_text(data))}).encode()


def _pod(pod: dict[str, Any]) -> AllocatedPod:
    containers = {name: _resources(own) for name, own in (pod["ContainerResources"] or {}).items()}
    return AllocatedPod(containers, _resources(pod["PodLevelResources"]))


def _resources(resources: dict[str, Any]) -> Resources:
    requests, limits = (
        {name: Quantity.parse(amount) for name, amount in (resources[key] or {}).items()}
        for key in ("requests", "limits")
    )
    return Resources(requests, limits)


def _contents(resources: Resources) -> dict[str, Any]:
    return {
        "limits": {name: str(amount) for name, amount in resources.limits.items()},
        "requests": {name: str(amount) for name, amount in resources.requests.items()},
    }
