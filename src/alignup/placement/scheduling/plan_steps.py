"""The steps of a plan that is carried out: what they are, how far they are, and the order in which they are done."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from alignup.align.workload import Pod
from alignup.placement.moves import RunningPod
from alignup.placement.pod_shape import shape_key


class PlanPhase(StrEnum):
    """How far a plan has been carried out; ``SUCCEEDED`` and ``FAILED`` are final."""

    PENDING = "Pending"  #: another plan is active, or the service has not read it yet
    RUNNING = "Running"  #: it is active: its room is held
    PAUSED = "Paused"  #: it is active, but no further pod is evicted
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class StepPhase(StrEnum):
    """How far a step has been carried out."""

    WAITING = "Waiting"  #: for the steps before it
    STARTED = "Started"  #: a pod is being evicted, or the node waits for the pod that it is held for
    DONE = "Done"
    FAILED = "Failed"
    SKIPPED = "Skipped"  #: it is not needed any more, or the plan ended before it


class EvictionOutcome(StrEnum):
    """What the API server has answered to an eviction."""

    ACCEPTED = "accepted"
    GONE = "gone"  #: the pod, or another one has its name now
    FORBIDDEN = "forbidden"  #: by a PodDisruptionBudget, for now
    LOST = "lost"  #: there was no answer, so the pod may have been evicted
    REFUSED = "refused"  #: for another reason, which does not pass


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveStep:
    """A pod is evicted from a node, or admitted by it."""

    uid: str  #: of the pod; with *replacement*, of the evicted one
    pod: str  #: its namespace and name
    node: str
    evicts: bool = False
    replacement: bool = False  #: whether the pod that its controller creates after the eviction is admitted

    def __str__(self) -> str:
        if self.evicts:
            return f"the eviction of {self.pod} from {self.node}"
        return f"the admission of {'the replacement of ' * self.replacement}{self.pod} by {self.node}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProgress:
    """How far a step is, and what another process needs to go on with it."""

    phase: StepPhase = StepPhase.WAITING
    message: str = ""
    placed: str = ""  #: uid of the pod that is admitted as the replacement
    evicted: Pod | None = None  #: the evicted pod
    controllers: frozenset[str] = frozenset()  #: uids of controllers that create the pod again
    earlier: frozenset[str] = frozenset()  #: uids of pods of these controllers that waited before the eviction

    @property
    def finished(self) -> bool:
        return self.phase not in {StepPhase.WAITING, StepPhase.STARTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOrder:
    """A plan to be carried out, as far as it was not done by another process."""

    uid: str
    name: str
    steps: tuple[ActiveStep, ...]
    progress: tuple[StepProgress, ...]
    deadline: float  #: by our clock
    paused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProgress:
    """How far a plan is, for its status."""

    phase: PlanPhase
    message: str
    steps: tuple[StepProgress, ...]
    evicted: int = 0  #: pods

    @property
    def final(self) -> bool:
        return self.phase in {PlanPhase.SUCCEEDED, PlanPhase.FAILED}


def execution_order(steps: Sequence[ActiveStep]) -> tuple[int, ...]:
    """Return the indices of *steps* in the order in which they are done.

    The pods that a plan makes room for may be a gang, which starts as a whole. So they are admitted together: the first
    ones wait for the last, and with them the replacements that come after them on the same nodes.
    """
    admissions = [index for index, step in enumerate(steps) if not step.evicts and not step.replacement]
    if len(admissions) < 2:
        return tuple(range(len(steps)))
    first, last = admissions[0], admissions[-1]
    sooner: list[int] = []
    later: list[int] = []
    nodes: set[str] = set()
    for index in range(first, last + 1):
        step = steps[index]
        if index in admissions:
            nodes.add(step.node)
        elif step.evicts or step.node not in nodes:
            sooner.append(index)
        else:
            later.append(index)
    return (*range(first), *sooner, *admissions, *later, *range(last + 1, len(steps)))


@dataclass(slots=True, eq=False)
class PendingEviction:
    """The eviction that is under way."""

    step: int
    number: int = 0  #: of the progress that says that it has started
    checked: bool = False  #: whether the facts were checked, and it is sent when its start is written
    sent: bool = False  #: whether it was sent, and there is no answer yet
    tries: int = 0
    forbidden_since: float | None = None


@dataclass(slots=True, eq=False)
class RunningPlan:
    order: PlanOrder
    sequence: tuple[int, ...]  #: of the steps
    progress: list[StepProgress]
    paused: bool
    since: float  #: when it was activated
    priority: int = 0  #: pods of a higher one are not kept out
    pods: dict[int, Pod] = field(default_factory=dict)  #: step → the pod that is decided on
    bound: set[str] = field(default_factory=set)  #: uids of admitted pods that are bound to their nodes
    recorded: dict[str, int] = field(default_factory=dict)  #: uid of a replacement → number of the progress with it
    number: int = 0  #: of the last progress
    written: int = 0
    message: str = ""
    eviction: PendingEviction | None = None
    reading: bool = False
    read_at: float = float("-inf")  #: when the facts may be read again

    @property
    def uid(self) -> str:
        return self.order.uid

    @property
    def steps(self) -> tuple[ActiveStep, ...]:
        return self.order.steps

    def remaining(self) -> list[int]:
        """Return the steps that are not finished, in the order in which they are done."""
        return [index for index in self.sequence if not self.progress[index].finished]

    def uid_of(self, index: int) -> str:
        """Return the uid of the pod that a step admits; empty: it is not known yet."""
        step = self.steps[index]
        return self.progress[index].placed if step.replacement else step.uid

    def admission_of(self, uid: str) -> int | None:
        """Return the remaining step that admits a pod."""
        admissions = (index for index in self.remaining() if not self.steps[index].evicts)
        return next((index for index in admissions if self.uid_of(index) == uid), None)

    def is_open(self, index: int) -> bool:
        """Return whether the pod of a step may get its node."""
        return self.progress[index].phase is StepPhase.STARTED and self.uid_of(index) not in self.recorded

    def eviction_of(self, index: int) -> int | None:
        """Return the step that evicts the pod whose replacement a step admits."""
        uid, steps = self.steps[index].uid, self.steps
        return next((other for other, step in enumerate(steps) if step.evicts and step.uid == uid), None)

    def replacement_of(self, index: int) -> int | None:
        uid, steps = self.steps[index].uid, self.steps
        return next((other for other, step in enumerate(steps) if step.replacement and step.uid == uid), None)


def find_protection(plan: RunningPlan, pods: Mapping[str, RunningPod]) -> str:
    """Return why one of the remaining pods may not be evicted; empty: all may."""
    evicted_uids = {step.uid for step in plan.steps if step.evicts}
    for index in plan.remaining():
        step = plan.steps[index]
        pod = pods.get(step.uid) if step.evicts else None
        if pod is None or pod.terminating:
            continue
        if f"{pod.pod.namespace}/{pod.pod.name}" != step.pod:  # its creator may evict the one that it names
            return f"pod {step.pod} does not have this uid"
        if pod.protected:
            return f"{step.pod} may not be evicted: it is one of the pods {pod.protected}"
        if plan.replacement_of(index) is None and not pod.preemptible:
            return f"{step.pod} may not be evicted without a new place: it is not of lower priority, or not allowed"
        together = {other.pod.uid for other in pods.values() if pod.group and other.group == pod.group}
        if left_uids := together - evicted_uids - set(plan.bound):
            names = ", ".join(sorted(f"{pods[uid].pod.namespace}/{pods[uid].pod.name}" for uid in left_uids))
            return f"{step.pod} may be evicted only with all of its group, and these stay: {names}"
    return ""


def is_alike(evicted_pod: Pod, pod: Pod) -> bool:
    """Return whether two pods request the same; a bound pod was read without labels and annotations."""
    return shape_key(_bare(evicted_pod)) == shape_key(_bare(pod))


def _bare(pod: Pod) -> Pod:
    return replace(pod, labels={}, annotations={}, statuses={}, resize_infeasible=False)
