"""What a scheduler reads of a workload that need not exist yet."""

import json

from alignup.documents import codec
from alignup.kubernetes.api.objects import ApiPodSpec
from alignup.kubernetes.manifests.workloads import Workload
from alignup.schedule.node_selection import DAEMON_SET_TOLERATIONS

_FIELDS = ("affinity", "nodeName", "nodeSelector", "schedulingGates", "tolerations")


def scheduling_spec(workload: Workload) -> ApiPodSpec:
    """The spec of one replica; *workload* was read with its manifest. ``ParseError`` if a field has the wrong type."""
    from alignup.kubernetes.podspec import manifest_of

    manifest = manifest_of(workload.pod)
    fields = json.loads(manifest.text)["spec"] if manifest else {}
    given = {name: fields[name] for name in _FIELDS if fields.get(name) is not None}
    if workload.phase:  # exported from a cluster, where it has been bound
        given.pop("nodeName", None)
    if workload.kind == "DaemonSet":
        own = [codec.to_builtins(one) for one in DAEMON_SET_TOLERATIONS]
        given["tolerations"] = [*given.get("tolerations", ()), *own]
    return codec.convert(given, ApiPodSpec)
