"""What pods and nodes prefer: conditions that kube-scheduler scores, and does not require.

A pod without preferences needs only the best node. For the others, the scheduler has to choose among several.
"""

from collections.abc import Iterable, Iterator

from alignup.kubernetes.api import Change, EventType, Informer
from alignup.kubernetes.api.objects import ApiNode, ApiPod, Taint, Toleration
from alignup.schedule.node_selection import is_tolerated

#: The controllers whose pods kube-scheduler spreads over nodes and zones unless they have constraints of their own.
_SPREAD_OWNERS = {"ReplicaSet", "StatefulSet", "ReplicationController"}


def has_preferences(pod: ApiPod) -> bool:
    """Whether kube-scheduler prefers some nodes to others because of what *pod* says, or because of its controller."""
    return any(_preferences(pod))


def _preferences(pod: ApiPod) -> Iterator[object]:
    affinity, constraints = pod.spec.affinity, pod.spec.topology_spread_constraints
    if affinity is not None:
        for one in (affinity.node_affinity, affinity.pod_affinity, affinity.pod_anti_affinity):
            yield one is not None and one.preferred
    if constraints:
        yield any(one.when_unsatisfiable == "ScheduleAnyway" for one in constraints)
    else:
        yield any(one.controller and one.kind in _SPREAD_OWNERS for one in pod.metadata.owner_references)


class SoftTaints:
    """The nodes with taints of the effect PreferNoSchedule, by their taints: nodes of one kind have the same."""

    def __init__(self, nodes: Informer[ApiNode]) -> None:
        self._taints: dict[str, tuple[Taint, ...]] = {}  #: by node
        self._nodes: dict[tuple[Taint, ...], set[str]] = {}
        nodes.subscribe(self._node_changed)

    def avoided_by(self, tolerations: Iterable[Toleration]) -> set[str]:
        """The nodes that a pod with these tolerations avoids where it can."""
        tolerated = tuple(tolerations)
        avoided = [
            own for taints, own in self._nodes.items() if not all(is_tolerated(one, tolerated) for one in taints)
        ]
        return set().union(*avoided)

    def _node_changed(self, change: Change[ApiNode]) -> None:
        name = change.object.metadata.name
        before = self._taints.pop(name, ())
        if before:
            self._nodes[before].discard(name)
            if not self._nodes[before]:
                del self._nodes[before]
        taints = tuple([one for one in change.object.spec.taints if one.effect == "PreferNoSchedule"])
        if taints and change.type is not EventType.DELETED:
            self._taints[name] = taints
            self._nodes.setdefault(taints, set()).add(name)
