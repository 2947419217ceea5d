"""PodDisruptionBudgets: how many of which pods may still be disrupted, as the API server says at that moment."""

from collections.abc import Iterable

import msgspec

from alignup.kubernetes.api import ApiClient
from alignup.kubernetes.api.objects import ApiPod, ObjectMeta
from alignup.kubernetes.api.resource import Resource
from alignup.kubernetes.manifests.node_selectors import NodeSelectorRequirement
from alignup.kubernetes.manifests.pod_decoder import Labels, ObjectPart
from alignup.placement.victims import DisruptionBudget
from alignup.schedule.node_selection import holds


class LabelSelector(ObjectPart, frozen=True):
    """Conditions on labels that must all be true; one without any selects everything."""

    match_labels: Labels = msgspec.field(default_factory=dict)
    match_expressions: tuple[NodeSelectorRequirement, ...] = ()


class DisruptionBudgetSpec(ObjectPart, frozen=True):
    selector: LabelSelector | None = None  #: ``None``: no pod


class DisruptionBudgetStatus(ObjectPart, frozen=True):
    disruptions_allowed: int = 0
    observed_generation: int = 0


class PodDisruptionBudget(ObjectPart, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: DisruptionBudgetSpec = DisruptionBudgetSpec()
    status: DisruptionBudgetStatus = DisruptionBudgetStatus()

    @property
    def allowed(self) -> int:
        """How many pods may be evicted now; the API server allows none while the status is of an older spec."""
        current = self.status.observed_generation >= self.metadata.generation
        return max(self.status.disruptions_allowed, 0) if current else 0


POD_DISRUPTION_BUDGETS = Resource(
    type=PodDisruptionBudget, kind="PodDisruptionBudget", plural="poddisruptionbudgets", group="policy", namespaced=True
)


async def read_budgets(client: ApiClient, pods: Iterable[ApiPod]) -> tuple[DisruptionBudget, ...]:
    """Return the budgets of the cluster, each with the *pods* that it covers."""
    budgets = (await client.list(POD_DISRUPTION_BUDGETS)).items
    all_pods = tuple(pods) if budgets else ()
    return tuple(
        DisruptionBudget(
            budget.metadata.full_name,
            budget.allowed,
            frozenset(pod.metadata.uid for pod in all_pods if _covers(budget, pod)),
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
