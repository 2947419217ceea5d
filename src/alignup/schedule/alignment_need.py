"""Whether the place of a pod inside a node matters at all."""

from alignup.align.workload import Pod, QoS
from alignup.align.workload.names import is_extended
from alignup.align.workload.validation import apply_defaults


def needs_alignment(pod: Pod) -> bool:
    """Whether a kubelet can reject *pod* because of NUMA nodes.

    Kubelets align the CPUs and memory of Guaranteed pods, and the devices of all pods. Every other pod is admitted if
    the node as a whole has room, which schedulers check themselves.
    """
    pod = apply_defaults(pod)
    if pod.qos is QoS.GUARANTEED:
        return True
    return any(
        is_extended(name) for one in pod.all_containers for name in (*one.resources.requests, *one.resources.limits)
    )
