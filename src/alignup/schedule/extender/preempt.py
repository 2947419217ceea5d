"""The verb preempt: which pods kube-scheduler evicts; see ``placement.scheduling.preemption``."""

import msgspec
import structlog

from alignup.align.errors import PodError
from alignup.kubernetes.api import ApiClient
from alignup.kubernetes.api.errors import ApiError
from alignup.kubernetes.api.objects import ApiPod, ObjectMeta
from alignup.kubernetes.api.resource import Resource
from alignup.kubernetes.manifests.node_selectors import NodeSelectorRequirement
from alignup.kubernetes.manifests.pod_decoder import Labels, ObjectPart
from alignup.placement.scheduling.events import PreemptionAsked
from alignup.placement.scheduling.facts import NodeVictims
from alignup.placement.scheduling.instructions import AnswerPreemption
from alignup.placement.victims import DisruptionBudget
from alignup.schedule.extender.messages import MetaPod, MetaVictims, PreemptionArgs, PreemptionResult
from alignup.schedule.live_cluster import LiveCluster
from alignup.schedule.node_selection import holds

CHOOSES_VICTIMS = (1, 38)  #: the first version of kube-scheduler that lets extenders name all victims

_log = structlog.get_logger()


class LabelSelector(ObjectPart, frozen=True):
    """Conditions on labels that must all be true; one without any selects everything."""

    match_labels: Labels = msgspec.field(default_factory=dict)
    match_expressions: tuple[NodeSelectorRequirement, ...] = ()


class DisruptionBudgetSpec(ObjectPart, frozen=True):
    selector: LabelSelector | None = None  #: ``None``: no pod


class DisruptionBudgetStatus(ObjectPart, frozen=True):
    disruptions_allowed: int = 0


class PodDisruptionBudget(ObjectPart, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: DisruptionBudgetSpec = DisruptionBudgetSpec()
    status: DisruptionBudgetStatus = DisruptionBudgetStatus()


POD_DISRUPTION_BUDGETS = Resource(
    type=PodDisruptionBudget, kind="PodDisruptionBudget", plural="poddisruptionbudgets", group="policy", namespaced=True
)


async def respond_victims(client: ApiClient, live: LiveCluster, args: PreemptionArgs) -> PreemptionResult:
    """Choose the pods to evict; none while it is unknown what nodes have, or what budgets allow."""
    name, uid = args.pod.metadata.full_name, args.pod.metadata.uid
    victims: dict[str, MetaVictims] = {}
    with live.guard.answering(f"preempt {name}"):
        try:
            facts = live.facts(args.pod)
            if not live.problems:
                budgets = await _read_budgets(client, live)
                proposed = {
                    node: NodeVictims(tuple(victim.uid for victim in each.pods or ()), each.violations)
                    for node, each in args.victims.items()
                }
                for answer in live.schedule(PreemptionAsked(facts, proposed, budgets)):
                    if isinstance(answer, AnswerPreemption):
                        victims = {
                            node: MetaVictims(tuple(map(MetaPod, each.pods)), each.violations)
                            for node, each in answer.victims.items()
                        }
        except (PodError, ApiError) as error:
            _log.warning("preempt", pod=name, uid=uid, problem=str(error))
    _log.info("preempt", pod=name, uid=uid, nodes=len(args.victims), answered=len(victims))
    return PreemptionResult(victims)


async def _read_budgets(client: ApiClient, live: LiveCluster) -> tuple[DisruptionBudget, ...]:
    budgets = (await client.list(POD_DISRUPTION_BUDGETS)).items
    pods = tuple(live.pods.objects.values()) if budgets else ()
    return tuple(
        DisruptionBudget(
            budget.metadata.full_name,
            budget.status.disruptions_allowed,
            frozenset(pod.metadata.uid for pod in pods if _covers(budget, pod)),
        )
        for budget in budgets
    )


def _covers(budget: PodDisruptionBudget, pod: ApiPod) -> bool:
    selector, labels = budget.spec.selector, pod.metadata.labels
    if selector is None or pod.metadata.namespace != budget.metadata.namespace:
        return False
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        holds(requirement, labels) for requirement in selector.match_expressions
    )
