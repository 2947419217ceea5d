"""What a scheduler reads of a workload that need not exist yet."""

import json

from alignup.cluster.node_selection import DAEMON_SET_TOLERATIONS
from alignup.kube import documents
from alignup.kube.manifests import Workload
from alignup.kubeapi.objects import ApiPodSpec
from alignup.schema import codec

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
