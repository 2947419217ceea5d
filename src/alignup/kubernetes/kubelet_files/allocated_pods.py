"""The file ``allocated_pods_state``: the requests and limits that the kubelet has admitted, for each pod by uid.

The kubelet writes it last in an admission, and only if the pod is admitted. After a resize in place it differs from
the pod's spec, and it is what the kubelet counts with. An ended pod stays in the file until the next admission.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from alignup import atomic_files
from alignup.align.bits import quote
from alignup.align.errors import QuantityError, StateError
from alignup.align.quantity import Quantity
from alignup.align.workload import Resources
from alignup.kubernetes.kubelet_files.go_json import STRING, GoType, Kind, decode
from alignup.kubernetes.kubelet_files.state_files import (
    CHECKSUM,
    CORRUPT,
    Contents,
    KnownFiles,
    data_checksum_text,
    decode_once,
    fnv1a,
    go_struct,
)

ALLOCATED_PODS_FILE = "allocated_pods_state"

_AMOUNTS = GoType("v1.ResourceList", Kind.MAP, STRING)
_RESOURCES = go_struct("v1.ResourceRequirements", limits=_AMOUNTS, requests=_AMOUNTS)
_ALLOCATED_POD = go_struct(
    "state.PodResourceInfo",
    ContainerResources=GoType("map[string]v1.ResourceRequirements", Kind.MAP, _RESOURCES),
    PodLevelResources=_RESOURCES,
)
_ALLOCATED_PODS = go_struct(
    "state.PodResourceCheckpointInfo", entries=GoType("state.PodResourceInfoMap", Kind.MAP, _ALLOCATED_POD)
)
_ALLOCATED_PODS_STRUCT = go_struct("state.Checkpoint", data=STRING, checksum=CHECKSUM)


@dataclass(frozen=True, slots=True)
class AllocatedPod:
    containers: Mapping[str, Resources] = field(default_factory=dict)  #: by name, init containers included
    resources: Resources = field(default_factory=Resources)  #: of the pod as a whole


AllocatedPods = Mapping[str, AllocatedPod]  #: by uid
_Texts = tuple[tuple[str, str], ...]  #: resources and their amounts


def parse_allocated_pods(text: bytes, *, path: str) -> AllocatedPods:
    """Decode the file at *path*; ``StateError`` if a kubelet would not start with it."""

    def resources(contents: Contents) -> Resources:
        requests, limits = contents["requests"] or {}, contents["limits"] or {}
        return _resources(tuple(requests.items()), tuple(limits.items()))

    file, error = decode(_ALLOCATED_PODS_STRUCT, text)
    if error is None and file["checksum"] != fnv1a(data_checksum_text(file["data"])):
        error = CORRUPT
    data: Contents = {}
    if error is None:
        data, error = decode(_ALLOCATED_PODS, file["data"].encode())
    try:
        if error is None:
            return {
                uid: AllocatedPod(
                    {name: resources(amounts) for name, amounts in (pod["ContainerResources"] or {}).items()},
                    resources(pod["PodLevelResources"]),
                )
                for uid, pod in (data["entries"] or {}).items()
            }
    except QuantityError as invalid:
        error = invalid.message
    raise StateError(f"could not read the checkpoint file of allocated resources {quote(path)}: {error}")


@lru_cache(maxsize=256)  # pods of one workload are alike
def _resources(requests: _Texts, limits: _Texts) -> Resources:
    return Resources(
        {name: Quantity.parse(amount) for name, amount in requests},
        {name: Quantity.parse(amount) for name, amount in limits},
    )


def read_allocated_pods(directory: Path, *, cache: KnownFiles | None = None) -> AllocatedPods | None:
    """Read ``allocated_pods_state``; ``None`` if it does not exist, as with older kubelets."""
    path = directory / ALLOCATED_PODS_FILE
    text = atomic_files.read(path)
    return None if text is None else decode_once(parse_allocated_pods, text, path, cache)


def dump_allocated_pods(pods: AllocatedPods) -> bytes:
    """Return the file as a kubelet writes it."""
    entries = {
        uid: {
            "ContainerResources": {name: _amounts(resources) for name, resources in pod.containers.items()},
            "PodLevelResources": _amounts(pod.resources),
        }
        for uid, pod in pods.items()
    }
    data = json.dumps({"entries": entries})
    return json.dumps({"data": data, "checksum": fnv1a(data_checksum_text(data))}).encode()


def _amounts(resources: Resources) -> dict[str, dict[str, str]]:
    limits = {name: str(amount) for name, amount in resources.limits.items()}
    return {"limits": limits, "requests": {name: str(amount) for name, amount in resources.requests.items()}}
