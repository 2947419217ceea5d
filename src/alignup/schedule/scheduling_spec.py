"""What a scheduler reads of a workload that need not exist yet."""

import json

from alignup.documents import codec
from alignup.kubernetes.api.objects import ApiPodSpec
from alignup.kubernetes.manifests import documents
from alignup.kubernetes.manifests.workloads import Workload
from alignup.schedule.node_selection import DAEMON_SET_TOLERATIONS

_FIELDS = ("affinity", "nodeName", "nodeSelector", "schedulingGates", "tolerations")


def scheduling_spec(workload: Workload) -> ApiPodSpec:
    """The spec of one replica; ``ParseError`` if a field has the wrong type."""
    spec = workload.manifest.get("spec") or {}
    given = {name: value for name in _FIELDS if (value := spec.get(name)) is not None}
    given = json.loads(documents.to_json(given))  # plain numbers
    if workload.phase:  # exported from a cluster, where it has been bound
        given.pop("nodeName", None)
    if workload.kind == "DaemonSet":
        own = [codec.to_builtins(one) for one in DAEMON_SET_TOLERATIONS]
        given["tolerations"] = [*given.get("tolerations", ()), *own]
    return codec.convert(given, ApiPodSpec)
