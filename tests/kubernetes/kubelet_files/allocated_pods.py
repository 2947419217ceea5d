"""The file ``allocated_pods_state`` as a kubelet writes it."""

import json

from alignup.align.workload import Resources
from alignup.kubernetes.kubelet_files.allocated_pods import AllocatedPods
from alignup.kubernetes.kubelet_files.state_files import data_checksum_text, fnv1a


def dump_allocated_pods(pods: AllocatedPods) -> bytes:
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
