"""PodDisruptionBudgets: how many pods of a workload may be disrupted now."""

import msgspec

from alignup.kubernetes.api.objects import NodeSelectorRequirement, ObjectMeta
from alignup.kubernetes.api.resource import Resource
from alignup.kubernetes.manifests.pod import Labels, ObjectPart


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
    type=PodDisruptionBudget,
    kind="PodDisruptionBudget",
    plural="poddisruptionbudgets",
    group="policy",
    namespaced=True,
)
