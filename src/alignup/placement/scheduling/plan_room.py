"""The room of a plan: whether its remaining steps on a node are still possible after other pods."""

from collections.abc import Sequence
from dataclasses import replace

from alignup.align.bits import NodeSet
from alignup.align.errors import AlignError
from alignup.align.ledger import Ledger
from alignup.align.workload import Pod
from alignup.placement.cluster import Cluster
from alignup.placement.host_record import HostRecord
from alignup.placement.pod_shape import SHAPE_UID, shape_key
from alignup.placement.scheduling.plan_steps import RunningPlan
from alignup.placement.steered import ANYWHERE

MAX_ANSWERS = 10_000  #: that are kept


class PlanRoom:
    """The answers about one plan, which are kept while a node stays in its state."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rooms: dict[object, tuple[object, bool]] = {}

    def clear(self) -> None:
        """Forget all answers: other steps remain."""
        self._rooms.clear()

    def is_taken_by(self, plan: RunningPlan, node: str, pods: Sequence[Pod]) -> bool:
        """Return whether the remaining steps on *node* would not be possible after *pods*; all others there stay."""
        record = self._cluster.record(node)
        if record is None:
            return True
        state, key = record.states(), (node, tuple(map(shape_key, pods)))
        answer = self._rooms.get(key)
        if answer is None or answer[0] is not state:
            if len(self._rooms) >= MAX_ANSWERS:
                self._rooms.clear()
            possible = all(self._follow_steps(plan, record, ledger, pods) for ledger in state.ledgers)
            answer = self._rooms[key] = (state, not (possible and state.ledgers))
        return answer[1]

    def is_left_by(self, plan: RunningPlan, node: str, pod: Pod, nodes: NodeSet) -> bool:
        """Return whether the remaining steps on *node* are possible after a pod there that is steered to *nodes*."""
        record = self._cluster.record(node)
        ledgers = record.without(pod.uid).states().ledgers if record else ()
        return record is not None and all(self._follow_steps(plan, record, ledger, (pod,), nodes) for ledger in ledgers)

    def _follow_steps(
        self, plan: RunningPlan, record: HostRecord, ledger: Ledger, pods: Sequence[Pod], nodes: NodeSet = ANYWHERE
    ) -> bool:
        """Return whether a host admits *pods*, steered to *nodes*, and all remaining steps are possible then."""
        model = record.model
        after: Ledger | None = ledger
        try:
            for number, pod in enumerate(pods):
                after = after and model.admit(after, replace(pod, uid=f"{SHAPE_UID}-new-{number}"), nodes)
            for index in plan.remaining():
                step, planned_pod = plan.steps[index], plan.pods.get(index)
                if step.node != record.name or after is None:
                    continue
                if step.evicts:
                    after = model.without(after, (step.uid,))
                elif planned_pod is not None and not record.holds(plan.uid_of(index)):
                    after = model.admit(after, replace(planned_pod, uid=f"{SHAPE_UID}-step-{index}"))
        except AlignError:
            return False
        return after is not None
