"""The nodes that schedulers are offered for a pod.

Only the best ones are offered, since a scheduler's own work grows with their number: one if nothing but our rank
matters. The scheduler does not say which of them it chose before it binds the pod, so the binding checks again.

A scheduler asks about the next pod before it binds the previous one, and a node gets one pod at a time. So a node that
was offered to another pod a moment ago comes after the others.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from alignup.align.errors import PodError
from alignup.align.reason_codes import UNKNOWN_DEMAND
from alignup.align.workload import Pod
from alignup.placement.pod_demands import demand_problem, needs_exact_host
from alignup.placement.pod_shape import needs_alignment
from alignup.placement.scheduling.claim_bindings import ClaimBindings
from alignup.placement.scheduling.claim_rules import MAX_JUDGED, ClaimSuitability, must_align, restricts_claims
from alignup.placement.scheduling.common_parts import CommonParts
from alignup.placement.scheduling.events import NodesAsked
from alignup.placement.scheduling.facts import PodFacts
from alignup.placement.scheduling.gang_placement import FULL
from alignup.placement.scheduling.instructions import AnswerNodes, WriteEvent
from alignup.placement.scheduling.options import ExtenderOptions
from alignup.placement.scheduling.preemption import Preemption
from alignup.placement.scheduling.tentative_gangs import TentativeGangs
from alignup.placement.scheduling.wake_ups import WakeUps
from alignup.placement.verdict import Verdict

MANY = 16  #: nodes for a scheduler to choose from by its own scores
CLAIM_POINTS = 30  #: of a score, for a node where devices of claims can be beside the CPUs
OFFER_SECONDS = 2.0  #: after which a scheduler has bound a pod elsewhere, or not at all
NOT_ALIGNED = "no devices for its claims beside its CPUs and memory"
NO_NEAR_DEVICES = "no devices for its claims that are as near as it demands"


class NodeOffers:
    """The answers to schedulers; *refusals* returns the nodes that are kept from a pod, and why."""

    def __init__(  # noqa: PLR0913 - everything that an answer depends on
        self,
        parts: CommonParts,
        *,
        gangs: TentativeGangs,
        suitability: ClaimSuitability,
        claims: ClaimBindings,
        preemption: Preemption,
        wake_ups: WakeUps,
        refusals: Callable[[Pod], Mapping[str, str]],
        kept_out: Callable[[str, Pod], object],
    ) -> None:
        self._cluster = parts.cluster
        self._facts = parts.facts
        self._assumptions = parts.assumptions
        self._turn = parts.turn
        self._gangs = gangs
        self._suitability = suitability
        self._claims = claims
        self._preemption = preemption
        self._wake_ups = wake_ups
        self._refusals = refusals
        self._kept_out = kept_out  #: called with a kept node that would admit a pod for which no node is offered
        self.options = ExtenderOptions()
        self._offered: dict[str, tuple[str, float]] = {}  #: node → uid of the last pod it was offered to, until when

    def asked(self, event: NodesAsked) -> None:
        try:
            if problem := demand_problem(event.facts.pod):
                self._turn.emit(WriteEvent(event.facts.uid, UNKNOWN_DEMAND, problem, gate=False))
                self._turn.emit(AnswerNodes(unresolvable=dict.fromkeys(event.nodes, problem)))
            else:
                self._turn.emit(self._answer(event))
        except PodError as error:
            self._turn.emit(AnswerNodes(problem=f"alignup cannot read the pod: {error}"))

    def scores(self, pod: Pod, nodes: Collection[str]) -> dict[str, float]:
        """Return how well a pod would be placed on the nodes of *nodes* that admit the pod."""
        verdicts = self._verdicts(pod, nodes).items() if needs_alignment(pod) else ()
        totals = {node: verdict.score.total for node, verdict in verdicts if verdict.admits and verdict.score}
        if pod.uses_claims:
            totals = {node: total + CLAIM_POINTS * self._suitability.suits(pod, node) for node, total in totals.items()}
        return totals

    def forget(self, uid: str) -> None:
        """Forget what was offered to a pod that is bound, or will be tried again."""
        self._offered = {node: offer for node, offer in self._offered.items() if offer[0] != uid}

    def _answer(self, event: NodesAsked) -> AnswerNodes:
        pod, names = event.facts.pod, event.nodes
        if waits := self._claims.waits(pod):
            return AnswerNodes(unresolvable=dict.fromkeys(names, waits))
        place = self._gangs.place(event.facts, names)
        refusals = self._refusals(pod)  # also because of the places that others of its gang have now
        if place is not None:
            others = self._without_report(names) if place.unfit else []  # gangs are not decided there
            if others and (best_nodes := self._best(event, others, refusals)):
                return AnswerNodes(tuple(best_nodes))
            if place.problem:
                self._wake_ups.refused(event.facts, names)
                for node in refusals:
                    if node in names and place.unfit and self._cluster.verdict(pod, node).admits:
                        self._kept_out(node, pod)
                # Evicting others for one pod would not let the gang start.
                gang = self._gangs.waiting_members(event.facts) if place.unfit else None
                resolvable = self._preemption.gang_nodes(pod, gang, names) if gang else ()
                return AnswerNodes(
                    failed={node: place.problem for node in names if node in resolvable},
                    unresolvable={node: place.problem for node in names if node not in resolvable},
                )
            if place.host:
                return AnswerNodes((place.host,))
        if not needs_alignment(pod) and not restricts_claims(pod):
            return self._answer_unaligned(event.facts, names, refusals)
        if best_nodes := self._best(event, names, refusals):
            self.forget(pod.uid)
            self._offered |= dict.fromkeys(best_nodes, (pod.uid, self._turn.now + OFFER_SECONDS))
            return AnswerNodes(tuple(best_nodes))
        return self._refuse(event.facts, names, refusals)

    def _answer_unaligned(
        self, facts: PodFacts, names: Collection[str], kept_reasons: Mapping[str, str]
    ) -> AnswerNodes:
        """Offer all nodes to a pod that no kubelet aligns, except nodes in *kept_reasons* and full nodes.

        Full nodes are full with pods on their way that the scheduler of the pod does not see.
        """
        pod = facts.pod
        full = [node for node in self._assumptions.hosts if not self._assumptions.has_room(node, pod)]
        refusals = dict.fromkeys(full, FULL) | dict(kept_reasons)
        node_refusals = {node: refusals[node] for node in names if node in refusals} if refusals else {}
        offered_nodes = tuple(node for node in names if node not in node_refusals)
        if not offered_nodes:
            self._wake_ups.refused(facts, names)
        return AnswerNodes(offered_nodes, unresolvable=node_refusals, aligned=False)

    def _refuse(self, facts: PodFacts, names: Collection[str], refusals: Mapping[str, str]) -> AnswerNodes:
        """Say why no node is offered, and where evicting pods may help."""
        pod = facts.pod
        verdicts = self._verdicts(pod, names)
        for node in refusals:
            if node in verdicts and verdicts[node].admits:
                self._kept_out(node, pod)
        if restricts_claims(pod):  # every node that admits it was tried
            refusals = dict.fromkeys(verdicts, NOT_ALIGNED if must_align(pod) else NO_NEAR_DEVICES) | dict(refusals)
        refusals = {node: reason for node, reason in refusals.items() if node in verdicts and verdicts[node].admits}
        reasons = {node: verdict.reason for node, verdict in verdicts.items()} | refusals
        self._wake_ups.refused(facts, names)
        resolvable = self._preemption.resolvable(pod, [node for node in verdicts if node not in refusals])
        return AnswerNodes(
            failed={node: reason for node, reason in reasons.items() if node in resolvable},
            unresolvable={node: reason for node, reason in reasons.items() if node not in resolvable},
        )

    def _best(self, event: NodesAsked, names: Collection[str], refused_nodes: Collection[str]) -> list[str]:
        """Return the best nodes without *refused_nodes*.

        Nodes that other pods may get, or that this pod avoids, come after the others, and nodes without a report last.
        A pod that was not bound after the last offer may need another node, so it gets several.
        """
        pod, limit = event.facts.pod, self.options.offered
        if limit is None:
            limit = MANY if event.facts.has_preferences or event.again else 1
        last = self._offered_to_others(pod.uid) | event.avoided
        if pod.uid in self._assumptions:  # the scheduler tries again, and the assumed node still admits the pod
            ranked_hosts = [ranked_host.host for ranked_host in self._cluster.rank(pod, names)]
            best_nodes = sorted(ranked_hosts, key=lambda name: name in last)
        else:
            candidate_count = limit if not pod.uses_claims else len(names) if restricts_claims(pod) else MAX_JUDGED
            best_nodes = self._cluster.best(
                pod, max(limit, candidate_count) + len(refused_nodes), among=names, last=last
            )
        best_nodes = [name for name in best_nodes if name not in refused_nodes]
        if pod.uses_claims:
            best_nodes = self._suitability.select(pod, best_nodes, limit)
        others = self._without_report(names) if len(best_nodes) < limit else []
        if others and not restricts_claims(pod):
            verdicts = self._verdicts(pod, others)
            scores = [(-verdict.score.total, name) for name, verdict in verdicts.items() if verdict.score]
            best_nodes += [name for _, name in sorted(scores) if verdicts[name].admits]
            if self.options.allow_unknown and not needs_exact_host(pod):
                best_nodes += [name for name in others if not verdicts[name].admits]
        return best_nodes[:limit]

    def _offered_to_others(self, uid: str) -> set[str]:
        """Return the nodes that were offered to other pods lately."""
        now = self._turn.now
        self._offered = {node: offer for node, offer in self._offered.items() if offer[1] > now}
        return {node for node, offer in self._offered.items() if offer[0] != uid}

    def _without_report(self, names: Iterable[str]) -> list[str]:
        """Return the nodes whose kubelets are not observed, if pods may go there."""
        approximate = self._facts.approximate_nodes
        if not self.options.allow_unknown and not approximate:
            return []
        nodes = [name for name in names if self._cluster.record(name) is None]
        return nodes if self.options.allow_unknown else [name for name in nodes if name in approximate]

    def _verdicts(self, pod: Pod, names: Collection[str]) -> dict[str, Verdict]:
        """Return the verdict of each node; ``PodError`` if no kubelet could decide on the pod."""
        verdicts = self._cluster.verdicts(pod, names)
        return {name: verdicts.get(name) or self._facts.verdict_without_report(pod, name) for name in names}
