"""PodDisruptionBudgets: how many pods of a workload may be disrupted now."""

import msgspec

from alignup.kubeapi.objects import Labels, NodeSelectorRequirement, ObjectMeta
from alignup.kubeapi.resource import Resource


class _Part(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The base of all parts, as in ``objects``."""


class LabelSelector(_Part, frozen=True):
    """Conditions on labels that must all be true; one without any selects everything."""

    match_labels: Labels = {}
    match_expressions: tuple[NodeSelectorRequirement, ...] = ()


class DisruptionBudgetSpec(_Part, frozen=True):
    selector: LabelSelector | None = None  #: ``None``: no pod


class DisruptionBudgetStatus(_Part, frozen=True):
    disruptions_allowed: int = 0


class PodDisruptionBudget(_Part, frozen=True):
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
