"""``Plan`` of ``alignup.dev/v1alpha1``: moves that the cluster service carries out to make room for pods.

The object has no namespace. The creator writes the ``spec``, and later changes only ``paused``; the cluster
service writes the ``status``. The spec says what is to happen, and proves nothing: the service decides again before
each step. The steps are in the order of their indices, and ``status.steps`` has an entry for each of them.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from alignup.documents.codec import Count, Document, LinuxList, Timestamp
from alignup.placement.scheduling.plan_steps import PlanPhase, StepPhase

GROUP, VERSION, KIND, PLURAL = "alignup.dev", "v1alpha1", "Plan", "plans"

MAX_STEPS = 400  #: of one plan
DEADLINE_SECONDS = 1800  #: of a plan that names no deadline


class StepAction(StrEnum):
    EVICT = "Evict"
    ADMIT = "Admit"


class PlanMetadata(Document, frozen=True, omit_defaults=True, kw_only=True):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""  #: always empty
    uid: str = ""
    resource_version: str = ""
    generation: Count = 0  #: rises with every change of ``spec``
    creation_timestamp: Timestamp | None = None
    deletion_timestamp: Timestamp | None = None


class PlannedPod(Document, frozen=True, kw_only=True):
    namespace: str
    name: str
    uid: str


class PlannedStep(Document, frozen=True, omit_defaults=True, kw_only=True):
    """One step: a pod is evicted from a node, or admitted by a node."""

    action: StepAction
    pod: PlannedPod  #: with ``replacement``: the evicted pod
    node: str
    replacement: bool = False  #: whether the pod that its controller creates after the eviction is admitted
    numa_nodes: LinuxList = ""  #: where the pod was predicted to go; the service predicts it again


class PlanSpec(Document, frozen=True, omit_defaults=True, kw_only=True):
    steps: tuple[PlannedStep, ...] = ()
    deadline_seconds: Annotated[int, Meta(ge=1)] = DEADLINE_SECONDS  #: after the creation of the object
    paused: bool = False
    allow_preemption: bool = False  #: whether pods of lower priority may be evicted without a new place
    allow_local_volumes: bool = False  #: whether pods with local volumes may be evicted
    exempt: tuple[str, ...] = ()  #: namespaces of pods that are never evicted


class StepStatus(Document, frozen=True, omit_defaults=True, kw_only=True):
    phase: StepPhase = StepPhase.WAITING
    message: str = ""
    pod: str = ""  #: uid of the pod that was admitted as the replacement
    time: Timestamp | None = None  #: of the last change of ``phase``
    # Of an eviction, what the next leader cannot read any more. They are written before the pod is evicted.
    evicted_pod: str = ""  #: what it requests: a Pod object as JSON
    controllers: tuple[str, ...] = ()  #: uids of controllers that create the pod again
    earlier_pods: tuple[str, ...] = ()  #: uids of pods of the same controllers that waited before the eviction


class PlanCondition(Document, frozen=True, omit_defaults=True, kw_only=True):
    """A condition as ``kubectl wait`` reads it: ``Complete`` or ``Failed``."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: Timestamp | None = None


class PlanStatus(Document, frozen=True, omit_defaults=True, kw_only=True):
    observed_generation: Count = 0
    phase: PlanPhase = PlanPhase.PENDING
    message: str = ""
    evicted: Count = 0  #: pods
    steps: tuple[StepStatus, ...] = ()
    conditions: tuple[PlanCondition, ...] = ()


class Plan(Document, frozen=True, omit_defaults=True, kw_only=True):
    metadata: PlanMetadata = PlanMetadata()
    spec: PlanSpec = PlanSpec()
    status: PlanStatus = PlanStatus()

    @property
    def final(self) -> bool:
        return self.status.phase in {PlanPhase.SUCCEEDED, PlanPhase.FAILED}
