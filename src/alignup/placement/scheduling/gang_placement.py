"""The nodes of a gang behind the gate: all pods of the gang are assumed there, or no pod."""

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import islice, permutations
from typing import NamedTuple

from alignup.align.workload import Pod
from alignup.placement.cluster import Cluster
from alignup.placement.gang import GangAnswer, GangBinding
from alignup.placement.pod_shape import shape_key
from alignup.placement.scheduling.claim_rules import GatedClaims
from alignup.placement.scheduling.common_parts import CommonParts
from alignup.placement.scheduling.facts import GangFacts, GroupKey, PodFacts, WaitingOrder
from alignup.placement.scheduling.kept_nodes import KeptNodes
from alignup.placement.scheduling.pod_queue import WaitingGang, kind_key
from alignup.placement.scheduling.releases import AvoidedNodes
from alignup.placement.shortage import describe_shortage
from alignup.placement.verdict import Feasibility, unknown

FULL = "too little left by the Node object"
NO_ORDER = "its pods share nodes in an order that the scheduler of a PodGroup does not keep"
MAX_ORDERS = 120  #: of pods on one node that are tried


class GangChoice(NamedTuple):
    bindings: tuple[GangBinding, ...] = ()  #: in the order of release; they are assumed
    in_turn: bool = False  #: whether pods of one node must be bound one after the other
    problem: str = ""  #: why the gang waits
    fitting: int = 0  #: of its pods


class GangPlacement:
    def __init__(
        self, parts: CommonParts, kept_nodes: KeptNodes, *, claims: GatedClaims, avoided_nodes: AvoidedNodes
    ) -> None:
        self._cluster = parts.cluster
        self._facts = parts.facts
        self._assumptions = parts.assumptions
        self._kept_nodes = kept_nodes
        self._claims = claims
        self._avoided = avoided_nodes

    def choose(self, gang: WaitingGang, *, placed_count: int, now: float) -> GangChoice:
        """Choose the nodes of a gang with *placed_count* placed pods, and assume the other pods there, or none."""
        facts = self._facts.gang(gang.key)
        beside = self._assumptions.beside(facts)
        nodes = self._gang_nodes(gang, [binding.host for binding in beside.values()], now)
        pods = [*(binding.pod for binding in beside.values()), *(member.pod for member in gang.members)]

        def has_room(host: str, pods: Sequence[Pod]) -> bool:
            *others, last = pods
            if self._facts.insufficient(host, last, beside=(*self._assumptions.on(host), *others)):
                return False
            return not self._kept_nodes.keeps_out(host, last, gang.order, after=others)

        answer = self._cluster.feasible_gang(pods, eligible=lambda pod: nodes[pod.uid], has_room=has_room)
        chosen_bindings = [binding for binding in answer.bindings if binding.pod.uid in nodes]
        count = placed_count + len(chosen_bindings)
        if count < facts.minimum:
            for member in {_member_key(member): member for member in gang.members}.values():
                self._note_kept_nodes(member, gang.order)
            full, verdicts = unknown(FULL), dict(answer.verdicts)
            for pod in answer.rest[:1]:  # nodes whose kubelets would admit it are full by their Node objects
                verdicts[pod.uid] = Feasibility(
                    {node: full if verdict.admits else verdict for node, verdict in verdicts[pod.uid].items()}
                )
            answer = replace(answer, verdicts=verdicts)
            return GangChoice(problem=describe_gang(gang.key, facts, count, answer, self._cluster), fitting=count)
        return self._assume_gang(gang, chosen_bindings, beside)

    def _note_kept_nodes(self, member: PodFacts, order: WaitingOrder) -> None:
        """Note the kept nodes that would otherwise admit a pod of a gang that waits."""
        for name in self._kept_nodes.names:
            if (
                self._facts.allows(member, name)
                and self._kept_nodes.keeps_out(name, member.pod, order)
                and self._assumptions.has_room(name, member.pod)
                and self._cluster.verdict(member.pod, name).admits
            ):
                self._kept_nodes.kept_out(name, member.pod)

    def _gang_nodes(self, gang: WaitingGang, holders: Collection[str], now: float) -> dict[str, Collection[str]]:
        """Return the nodes of each pod, by uid. Claims are checked only on nodes that admit the pod."""
        place_of = self._kept_nodes.plan.place_of
        keys = {member.uid: (_member_key(member), place_of(member.uid)) for member in gang.members}
        kinds = {keys[member.uid]: replace(member, order=gang.order) for member in gang.members}
        node_order = dict.fromkeys(holders)  # in an order that does not depend on the process
        for member in kinds.values() if any(member.pod.uses_claims for member in kinds.values()) else ():
            node_order |= dict.fromkeys(self._cluster.feasible(member.pod).admitting())
        nodes = {key: self._member_nodes(member, node_order, now) for key, member in kinds.items()}
        return {member.uid: nodes[keys[member.uid]] for member in gang.members}

    def _member_nodes(self, member: PodFacts, gang_nodes: Collection[str], now: float) -> Collection[str]:
        """Return the nodes that a pod of a gang may be released to, as far as its other pods do not matter.

        Its claims may allow fewer of *gang_nodes*. No other nodes are chosen anyway.
        """
        allowed_nodes = set(self._facts.allowed(member))
        allowed_nodes -= self._avoided.of(member, now=now)
        allowed_nodes -= self._kept_nodes.refusals(member.pod, member.order).keys()
        if member.pod.uses_claims:
            allowed_nodes -= {
                name for name in gang_nodes if name in allowed_nodes and self._claims.refusal(member.pod, name)
            }
        return frozenset(allowed_nodes)

    def _assume_gang(
        self, gang: WaitingGang, chosen_bindings: Sequence[GangBinding], beside: Mapping[str, GangBinding]
    ) -> GangChoice:
        by_node: dict[str, list[GangBinding]] = {}
        for binding in chosen_bindings:
            by_node.setdefault(binding.host, []).append(binding)
        beside_on_node = {host: [binding for binding in beside.values() if binding.host == host] for host in by_node}
        mixed_hosts = [host for host, bindings in by_node.items() if len({shape_key(pod) for pod, _ in bindings}) > 1]
        at_once = gang.bound_at_once
        if at_once and not all(self._admits_any_order(by_node[host], beside_on_node[host]) for host in mixed_hosts):
            return GangChoice(problem=f"gang {gang.key}: {NO_ORDER}")
        others = [binding for bindings in beside_on_node.values() for binding in bindings]
        verdicts = self._assumptions.assume_gang(chosen_bindings, beside=others)
        if not verdicts[-1].admits:
            return GangChoice(problem=f"gang {gang.key}: {verdicts[-1].reason}")
        return GangChoice(tuple(chosen_bindings), in_turn=bool(mixed_hosts) and not at_once)

    def _admits_any_order(self, bindings: Collection[GangBinding], beside: Collection[GangBinding]) -> bool:
        """Return whether a node admits pods in any order of their bindings."""
        tried_shapes = set()
        for order in islice(permutations(bindings), MAX_ORDERS + 1):
            shapes = tuple(shape_key(pod) for pod, _ in order)
            if shapes in tried_shapes:
                continue
            tried_shapes.add(shapes)
            admits = len(tried_shapes) <= MAX_ORDERS and self._cluster.assume_gang((*beside, *order))[-1].admits
            for pod, _ in order:
                self._cluster.forget(pod.uid)
            if not admits:
                return False
        return True


def _member_key(member: PodFacts) -> Hashable:
    """Return a key that is equal for pods of a gang that may be released to the same nodes."""
    return kind_key(member), member.controllers


def describe_gang(key: GroupKey, gang: GangFacts, count: int, answer: GangAnswer, cluster: Cluster) -> str:
    """Return why a gang waits: only *count* of its pods fit together."""
    needed_count = max(gang.minimum, gang.present)
    shortage = describe_shortage(cluster, answer.verdicts[answer.rest[0].uid]) if answer.rest else "nodes changed"
    text = f"gang {key}: {count} of {needed_count} pods fit together; {shortage}"
    return text if answer.proved else f"{text}; no more were found within {answer.steps} steps"
