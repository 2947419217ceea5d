"""Gangs behind the gate: one entry of the queue for all pods of a group, until enough of them exist and fit together.

Pods of a group whose minimum is reached wait alone. A gang of which some pods are released or bound already, because
the process that began ended, comes before everything else.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import islice, permutations
from typing import NamedTuple

from alignup.align.workload import Pod
from alignup.gate.blocked_pods import DELAY, FULL
from alignup.gate.pod_queue import GatedGang, GatedPod, PodQueue, WaitingOrder, gang_uid, kind_key
from alignup.gate.releases import Releases, controller_uids
from alignup.gate.schedulable_nodes import NodeCapacity
from alignup.kubernetes.api.objects import ApiPod
from alignup.placement.gang import GangAnswer, GangBinding
from alignup.placement.pod_shape import shape_key
from alignup.placement.verdict import Feasibility, unknown
from alignup.schedule.gangs import INCOMPLETE, describe_gang, held_bindings
from alignup.schedule.live_cluster import LiveCluster
from alignup.schedule.pod_events import PodEvents
from alignup.schedule.pod_groups import GroupKey, GroupMembers, group_of

MAX_ORDERS = 120  #: of pods on one node that are tried
NO_ORDER = "its pods share nodes in an order that the scheduler of a PodGroup does not keep"
_FIRST: WaitingOrder = (-(1 << 40), "", "", "")  #: before all priorities

#: the nodes that a pod may be released to; only of the given ones it matters whether its claims do not allow them
AllowedNodes = Callable[[GatedPod, Collection[str]], Collection[str]]


class GangChoice(NamedTuple):
    bindings: tuple[GangBinding, ...] = ()  #: in the order of release; they are assumed
    in_turn: bool = False  #: whether pods of one node must be bound one after the other
    problem: str = ""  #: why the gang waits
    fitting: int = 0  #: of its pods


class GatedGangs:
    """The pods of groups behind the gate; *add_alone* puts a pod into the queue whose group has started."""

    def __init__(  # noqa: PLR0913 - everything that pods of gangs wait in
        self,
        live: LiveCluster,
        queue: PodQueue,
        releases: Releases,
        events: PodEvents,
        *,
        add_alone: Callable[[GatedPod], object],
        clock: Callable[[], float],
    ) -> None:
        self._live, self._queue, self._releases, self._events = live, queue, releases, events
        self._add_alone, self._clock = add_alone, clock
        self._missing: dict[GroupKey, float] = {}  #: groups without enough pods → when to explain that
        self._ready: dict[GroupKey, dict[str, GatedPod]] = {}  #: by uid, those that have no gate but ours
        self._keys: dict[str, GroupKey] = {}

    def __len__(self) -> int:
        """The number of gangs that wait for more of their pods."""
        return len(self._missing)

    def put(self, waiting: GatedPod) -> bool:
        """Add a pod, or replace it by its present version; return whether it is in a group."""
        key = group_of(waiting.api)
        if key is None:
            return False
        self._keys[waiting.uid] = key
        self._ready.setdefault(key, {})[waiting.uid] = waiting
        self.update(key)
        return True

    def remove(self, uid: str) -> None:
        """Remove a pod that waits no longer, if it is in a group."""
        key = self._keys.pop(uid, None)
        if key is not None:
            self._ready[key].pop(uid, None)
            self.update(key)

    def take(self, gang: GatedGang) -> None:
        """Remove all pods of a gang that will be released; the caller puts back those that are not."""
        self._queue.remove(gang.uid)
        for uid in self._ready.pop(gang.key, {}):
            self._keys.pop(uid, None)

    def update(self, key: GroupKey) -> None:
        """Queue the pods of a group: together, or alone if it has started, or not at all if some are missing."""
        ready = self._ready.get(key, {})
        self._queue.remove(gang_uid(key))
        if not ready:
            self._ready.pop(key, None)
            return
        members = self._live.pod_groups.members(key)
        placed = self.count_placed(members)
        if placed >= members.minimum or members.minimum == 1:
            for waiting in ready.values():
                self._add_alone(waiting)
            return
        for uid in ready:
            self._queue.remove(uid)
        if placed + len(ready) < members.minimum:
            self._missing.setdefault(key, self._clock() + DELAY)
            return
        self._missing.pop(key, None)
        pods = tuple(sorted(ready.values(), key=lambda waiting: waiting.order))
        order = _FIRST if placed else pods[0].order
        since = min(waiting.since for waiting in pods)
        self._queue.add(GatedGang(order, pods[0].api, pods[0].pod, since, key, pods))

    def next_check(self) -> float | None:
        """Return the seconds until something is to be explained; ``None``: nothing is."""
        return max(next(iter(self._missing.values())) - self._clock(), 0.0) if self._missing else None

    def explain(self) -> None:
        """Write events about the pods of gangs of which others have been missing for a moment."""
        now = self._clock()
        for key in [key for key, due in self._missing.items() if due <= now]:
            del self._missing[key]
            members = self._live.pod_groups.members(key)
            here = self.count_placed(members) + len(self._ready.get(key, {}))
            message = f"gang {key}: {here} of {members.minimum} pods are behind the gate or released"
            for waiting in self._ready.get(key, {}).values() if here < members.minimum else ():
                self._events.note(waiting.api, INCOMPLETE, message)

    def count_placed(self, members: GroupMembers) -> int:
        """Return how many pods are bound or released."""
        return len(members.bound) + sum(pod.metadata.uid in self._releases for pod in members.waiting)

    def needed(self, gang: GatedGang) -> tuple[GatedPod, ...]:
        """Return the pods that must start together: as many as are missing to the minimum."""
        members = self._live.pod_groups.members(gang.key)
        return gang.members[: members.minimum - self.count_placed(members)]

    def choose(self, gang: GatedGang, allowed: AllowedNodes, capacity: NodeCapacity) -> GangChoice:
        """Choose the nodes of a gang, and assume its pods there; or none of them."""
        live, members = self._live, self._live.pod_groups.members(gang.key)
        beside, placed = held_bindings(live, members), self.count_placed(members)
        nodes = self._allowed_nodes(gang, allowed, {binding.host for binding in beside.values()})
        pods = [*(binding.pod for binding in beside.values()), *(member.pod for member in gang.members)]

        def has_room(host: str, pods: Sequence[Pod]) -> bool:
            node, (*others, last) = live.nodes.get(host), pods
            return node is not None and not capacity.insufficient(node, last, beside=others)

        answer = live.cluster.feasible_gang(pods, eligible=lambda pod: nodes[pod.uid], has_room=has_room)
        chosen = [binding for binding in answer.bindings if binding.pod.uid in nodes]
        fitting = placed + len(chosen)
        if fitting < members.minimum:
            problem = describe_gang(gang.key, members, fitting, _with_full_nodes(answer), live)
            return GangChoice(problem=problem, fitting=fitting)
        return self._assume(gang, chosen, beside)

    def _allowed_nodes(
        self, gang: GatedGang, allowed: AllowedNodes, holding: Collection[str]
    ) -> dict[str, Collection[str]]:
        """Return the nodes of each pod by uid; claims are looked at where a pod is admitted, or others of it are."""
        kinds = {_member_key(member): replace(member, order=gang.order) for member in gang.members}
        admitting = set(holding)
        for member in kinds.values() if any(member.pod.uses_claims for member in kinds.values()) else ():
            admitting.update(self._live.cluster.feasible(member.pod).admitting())
        nodes = {key: allowed(member, admitting) for key, member in kinds.items()}
        return {member.uid: nodes[_member_key(member)] for member in gang.members}

    def _assume(self, gang: GatedGang, chosen: Sequence[GangBinding], beside: Mapping[str, GangBinding]) -> GangChoice:
        by_node: dict[str, list[GangBinding]] = {}
        for binding in chosen:
            by_node.setdefault(binding.host, []).append(binding)
        held = {host: [binding for binding in beside.values() if binding.host == host] for host in by_node}
        mixed = [host for host, bindings in by_node.items() if len({shape_key(pod) for pod, _ in bindings}) > 1]
        in_order = gang.api.spec.scheduling_group is not None  # its scheduler binds them when all are released
        problem = ""
        if in_order and not all(self._admits_any_order(by_node[host], held[host]) for host in mixed):
            problem = f"gang {gang.key}: {NO_ORDER}"
        else:
            verdicts = self._live.assume_gang(chosen, beside=[each for bindings in held.values() for each in bindings])
            problem = "" if verdicts[-1].admits else f"gang {gang.key}: {verdicts[-1].reason}"
        if problem:
            return GangChoice(problem=problem)
        return GangChoice(tuple(chosen), in_turn=bool(mixed) and not in_order)

    def _admits_any_order(self, bindings: Collection[GangBinding], beside: Collection[GangBinding]) -> bool:
        """Return whether a node admits pods in whatever order they are bound; listeners do not hear of the tries."""
        cluster, tried = self._live.cluster, set()
        for order in islice(permutations(bindings), MAX_ORDERS + 1):
            shapes = tuple(shape_key(pod) for pod, _ in order)
            if shapes in tried:
                continue
            tried.add(shapes)
            admits = len(tried) <= MAX_ORDERS and cluster.assume_gang((*beside, *order))[-1].admits
            for pod, _ in order:
                cluster.forget(pod.uid)
            if not admits:
                return False
        return True


def _with_full_nodes(answer: GangAnswer) -> GangAnswer:
    """Say of the first pod of the rest why nodes are not chosen whose kubelets would admit it."""
    full, first = unknown(FULL), [pod.uid for pod in answer.rest[:1]]
    verdicts = {
        uid: Feasibility({node: full if verdict.admits else verdict for node, verdict in answer.verdicts[uid].items()})
        for uid in first
    }
    return replace(answer, verdicts=verdicts)


def _member_key(member: GatedPod) -> Hashable:
    """Return a key that is equal for pods of a gang that may be released to the same nodes."""
    return kind_key(member), frozenset(controller_uids(member.api))


def assume_released(live: LiveCluster, api_pod: ApiPod, pod: Pod, nodes: tuple[str, ...]) -> bool:
    """Count on a released pod on *nodes*, beside its gang if it is in one; return whether they admit it."""
    key = group_of(api_pod)
    if key is None or len(nodes) > 1 or live.cluster.record(nodes[0]) is None:
        return live.assume_any(pod, nodes) == nodes
    held = held_bindings(live, live.pod_groups.members(key), without=(pod.uid,)).values()
    beside = [binding for binding in held if binding.host == nodes[0]]
    return live.assume_gang([GangBinding(pod, nodes[0])], beside=beside)[-1].admits


def describe_rest(key: GroupKey, members: GroupMembers, *, replaced: bool) -> tuple[str, list[ApiPod]]:
    """Return what becomes of a gang of which a pod is not bound, and which of its pods are *replaced*, too."""
    bound = [pod for pod in members.bound if not pod.finished]
    text = f"; {len(bound)} of {members.minimum} pods of gang {key} are bound"
    if not replaced or not bound or len(bound) >= members.minimum:
        return text, []
    return f"{text}, and replaced as well", [pod for pod in bound if controller_uids(pod)]
