"""Verdicts by host state and pod shape, each computed once.

Two levels share work. Where a pod goes depends on free CPUs, memory and devices only: the :class:`AlignmentState`.
Whether the host as a whole has room for it also depends on what all its pods use: the :class:`HostState`. A verdict is
kept as long as a host is in its state, and shapes that were not asked for lately are dropped.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import replace
from weakref import WeakValueDictionary

from alignup.align.admit import check_fit
from alignup.align.errors import PodError, WorkLimitError
from alignup.align.fit import NodeAllocatable, UsedResources
from alignup.align.host import check_pod
from alignup.align.ledger import Ledger
from alignup.align.workload import Pod
from alignup.placement.free_capacity import FreeCapacity, measure_free_capacity
from alignup.placement.host_model import HostModel
from alignup.placement.pod_shape import PodShape, build_shape, shape_key
from alignup.placement.score import consider_totals, score_placement, score_shared
from alignup.placement.verdict import TOO_MUCH_WORK, Verdict, VerdictKind, rejected, unknown


class AlignmentState:
    """All hosts of one model whose ledgers place every pod alike."""

    def __init__(
        self,
        model: HostModel,
        ledger: Ledger,
        *,
        approximate: bool,
        anywhere: dict[tuple[HostModel, PodShape], Verdict],
    ) -> None:
        self.model, self.ledger, self.approximate = model, ledger, approximate
        self._anywhere = anywhere  #: verdicts about pods that any host of a model places alike
        self.states: WeakValueDictionary[Hashable, HostState] = WeakValueDictionary()  #: by what the pods use
        self.verdicts: dict[PodShape, tuple[Verdict, NodeAllocatable | None]] = {}
        self._free_capacity: FreeCapacity | None = None

    @property
    def free_capacity(self) -> FreeCapacity:
        if self._free_capacity is None:
            self._free_capacity = measure_free_capacity(self.model.at(self.ledger, fit_check=False))
        return self._free_capacity

    def align(self, shape: PodShape) -> tuple[Verdict, NodeAllocatable | None]:
        """Return the verdict before the fit check of the whole host, and what is allocatable in it."""
        if shape in self.verdicts:
            return self.verdicts[shape]
        allocatable = self.model.host.rules.allocatable
        devices = self.ledger.devices
        if self.model.requests_nothing(shape.pod, devices.handled):
            known = self._anywhere.get((self.model, shape))
            if known is None:
                known = self._anywhere[self.model, shape] = self._decide(shape)[0]
            verdict = known
            if known.score is not None:
                host = self.model.at(self.ledger, fit_check=False)
                score = score_shared(host, free_capacity=self.free_capacity, preferred=known.score.preferred)
                verdict = replace(known, score=score, approximate=self.approximate)
            after = self.ledger
        else:
            verdict, after = self._decide(shape)
        if verdict.admits and allocatable is not None:
            allocatable = allocatable.with_devices(after.devices.allocatable(shape.pod.uid))
        result = self.verdicts[shape] = (verdict, allocatable if verdict.admits else None)
        return result

    def _decide(self, shape: PodShape) -> tuple[Verdict, Ledger]:
        """Return the verdict before the fit check, and the ledger after the pod."""
        try:
            decision = self.model.align(self.ledger, shape.pod)
        except WorkLimitError as error:
            return unknown(TOO_MUCH_WORK, str(error)), self.ledger
        except PodError as error:  # annotations that only some hosts read
            return Verdict(VerdictKind.REJECTS, "invalid pod", note=str(error)), self.ledger
        if decision.rejection is not None:
            return rejected(decision.rejection), self.ledger
        after = decision.after or self.ledger
        verdict = Verdict(
            VerdictKind.ADMITS,
            score=score_placement(self.model.at(after, fit_check=False), decision, before=self.free_capacity),
            approximate=self.approximate,
            shared_placements=decision.placements,
            inventories=after.devices.inventories
            if any(placement.devices for placement in decision.placements)
            else None,
        )
        return verdict, after


class HostState:
    """All hosts of one alignment state whose pods use as much in total."""

    __slots__ = ("__weakref__", "alignment", "ledger", "verdicts")

    def __init__(self, alignment: AlignmentState, ledger: Ledger) -> None:
        self.alignment, self.ledger = alignment, ledger
        self.verdicts: dict[PodShape, Verdict] = {}

    def verdict(self, shape: PodShape) -> Verdict:
        verdict = self.verdicts.get(shape)
        if verdict is None:
            verdict, allocatable = self.alignment.align(shape)
            if allocatable is not None:
                failure = check_fit(shape.pod, self.ledger, allocatable=allocatable, usage=shape.usage)
                if failure:
                    verdict = rejected(failure)
                elif verdict.score is not None:
                    score = consider_totals(
                        verdict.score,
                        self.ledger,
                        before=self.alignment.free_capacity,
                        allocatable=allocatable,
                        request=shape.usage,
                    )
                    verdict = verdict if score is verdict.score else replace(verdict, score=score)
            self.verdicts[shape] = verdict
        return verdict


class VerdictCache:
    """Host states and pod shapes in use, and the last *max_states* states that no host is in any more."""

    def __init__(self, *, max_shapes: int, max_states: int = 0) -> None:
        self._max_shapes, self._max_states = max_shapes, max_states
        self._recent: OrderedDict[HostState, None] = OrderedDict()  #: the one asked for last is at the end
        self._states: WeakValueDictionary[Hashable, AlignmentState] = WeakValueDictionary()
        self._shapes: OrderedDict[Hashable, PodShape] = OrderedDict()  #: the one asked for last is at the end
        self._anywhere: dict[tuple[HostModel, PodShape], Verdict] = {}
        self.dropped: list[PodShape] = []  #: shapes dropped since the last call of ``shape``

    def state(self, model: HostModel, ledger: Ledger, *, approximate: bool) -> HostState:
        key = (id(model), approximate, ledger.alignment_key())
        alignment = self._states.get(key)
        if alignment is None:
            alignment = self._states[key] = AlignmentState(
                model, ledger, approximate=approximate, anywhere=self._anywhere
            )
        used = used_key(ledger.used)
        state = alignment.states.get(used)
        if state is None:
            state = alignment.states[used] = HostState(alignment, ledger)
        if self._max_states:
            self._recent[state] = None
            self._recent.move_to_end(state)
            if len(self._recent) > self._max_states:
                self._recent.popitem(last=False)
        return state

    def shape(self, pod: Pod) -> PodShape:
        """Return the shape of *pod*; ``PodError`` if no host could decide on it."""
        key = shape_key(pod)
        self.dropped.clear()
        shape = self._shapes.get(key)
        if shape is not None:
            self._shapes.move_to_end(key)
            return shape
        check_pod(pod)
        shape = self._shapes[key] = build_shape(pod)
        while len(self._shapes) > self._max_shapes:
            _, oldest = self._shapes.popitem(last=False)
            self.dropped.append(oldest)
        if self.dropped:
            self._anywhere.clear()
        for oldest in self.dropped:
            for alignment in list(self._states.values()):
                alignment.verdicts.pop(oldest, None)
                for state in list(alignment.states.values()):
                    state.verdicts.pop(oldest, None)
        return shape

    def __len__(self) -> int:
        """Return the number of distinct alignment states of all hosts."""
        return len(self._states)


def used_key(used: UsedResources) -> Hashable:
    """Return *used* as a key."""
    return (*used[:4], frozenset(used.scalars.items())) if used.scalars else used[:4]
