"""Reports of observers about the hosts of a cluster, and the stages of pods by events of the API server.

When the resources of a pod count as free was measured on a real kubelet. A deletion timestamp alone frees nothing: the
containers still run. The kubelet frees everything when it has ended the pod, which the API server learns a little
later: the phase is terminal, all containers have terminated during a deletion, or the object is gone. So a terminating
pod may or may not hold its resources, and so may one whose containers have all ended by themselves, not to be started
again: its phase becomes terminal soon. A container that ended by itself in a running pod frees nothing.
"""

from dataclasses import dataclass
from enum import StrEnum

from alignup.align.host import Settings
from alignup.align.ledger import Ledger
from alignup.align.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """The state of one kubelet as an observer read it; ``ledger.pods`` has all admitted pods."""

    host: str
    machine: Machine
    settings: Settings
    ledger: Ledger
    sequence: int  #: rises with every report about this host
    kubelet: str = ""  #: changes when the kubelet restarts
    approximate: bool = False  #: whether the ledger was derived from totals, without CPU and device ids


class PodStage(StrEnum):
    """The stage of a pod on a host."""

    RUNNING = "running"  #: it holds its resources, or will when the kubelet has admitted it
    TERMINATING = "terminating"  #: it may have released them
    ENDED = "ended"  #: it has released them


def pod_stage(
    *,
    phase: str = "Running",
    deleting: bool = False,
    deleted: bool = False,
    containers_terminated: bool = False,
    force_deleted_may_run: bool = False,
) -> PodStage:
    """Return the stage of a pod; *deleting*: it has a deletion timestamp, *deleted*: the object is gone.

    A force-deleted pod is gone at once while its containers still run. The kubelet gives their CPUs to the next pod;
    with *force_deleted_may_run* such a pod counts as terminating, so that no pod is placed where that matters.
    """
    if deleted:
        return PodStage.TERMINATING if force_deleted_may_run else PodStage.ENDED
    if phase in {"Succeeded", "Failed"} or (deleting and containers_terminated):
        return PodStage.ENDED
    return PodStage.TERMINATING if deleting else PodStage.RUNNING


class Cause(StrEnum):
    """A cause for a decision other than predicted; the list is complete. Of several, the first is counted."""

    FOREIGN_POD = "foreign_pod"  #: a static pod, one created with a node name, or one of another scheduler
    CONFIGURATION = "configuration"  #: other settings, or another machine
    KUBELET_RESTART = "kubelet_restart"  #: a starting kubelet admits the pods it finds by age
    DEVICES = "devices"  #: devices came, went, or changed their health
    PREEMPTION = "preemption"  #: the kubelet ended pods for a critical one
    POD_END = "pod_end"  #: a pod ended between the prediction and the admission
    BINDING_ORDER = "binding_order"  #: pods that differ, such as of a gang, were bound in another order than assumed
    STEERING = "steering"  #: the kubelet did not have the markers of one NUMA node only when it admitted a steered pod
    READMISSION = "readmission"  #: a kubelet that restarted rejected a pod that it had admitted
    HOST_RESOURCES = "host_resources"  #: the host as a whole had no room (OutOfcpu and so on)
    APPROXIMATE = "approximate"  #: the report about the host was not exact
    UNEXPLAINED = "unexplained"  #: none of these: a defect of the prediction
