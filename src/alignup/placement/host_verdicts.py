"""The verdicts of all hosts of a cluster on pods, each computed once and kept until a host changes.

For every pod shape there is a table with the verdict of each host. Before it is used, the verdicts of the hosts that
changed since are renewed; hosts in the same state share them.

Two levels of states share work. Where a pod goes depends on free CPUs, memory and devices only: the
:class:`AlignmentState`. Whether the host as a whole has room for it also depends on what all its pods use: the
:class:`UsageState`. A verdict is kept as long as a host is in its state, and shapes that were not asked for lately are
dropped.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from alignup.align import bits, fit
from alignup.align.admit import POD_OF, reject_unfit
from alignup.align.bits import NodeSet
from alignup.align.errors import PodError, WorkLimitError
from alignup.align.explain.sentences import describe_possible_rejection, disagreeing_resources
from alignup.align.fit import NodeAllocatable, UsedResources
from alignup.align.host import check_pod
from alignup.align.ledger import Ledger
from alignup.align.reason_codes import UNKNOWN_DEMAND
from alignup.align.workload import Pod
from alignup.placement.free_capacity import FreeCapacity, measure_free_capacity
from alignup.placement.host_model import HostModel, ledger_after, unsettled_devices
from alignup.placement.host_record import MAX_STATES, HostRecord, with_ends
from alignup.placement.pod_demands import Refusal, demand_problem, find_refusal, has_demands
from alignup.placement.pod_shape import SHAPE_UID, PodShape, build_shape, shape_key
from alignup.placement.score import consider_totals, score_placement, score_shared
from alignup.placement.steered import ANYWHERE, NOT_THERE, are_on, marker_nodes, withdraw_markers
from alignup.placement.verdict import (
    MAY_BE_REJECTED,
    TOO_MUCH_WORK,
    UNSETTLED_DEVICES,
    WAITS_FOR_CONFIRMATION,
    Verdict,
    VerdictKind,
    combine,
    defect,
    rejected,
    unknown,
)

_UNCONFIRMED, _UNSETTLED = unknown(WAITS_FOR_CONFIRMATION), unknown(UNSETTLED_DEVICES)

DefectListener = Callable[[str, Exception], object]  #: called with a host, and what its decision raised


@dataclass(eq=False)
class AlignmentState:
    """All hosts of one model whose ledgers place every pod alike."""

    model: HostModel
    ledger: Ledger
    approximate: bool
    anywhere: dict[tuple[HostModel, PodShape], Verdict]  #: about pods that any host of a model places alike
    #: by what the pods use
    states: "WeakValueDictionary[Hashable, UsageState]" = field(default_factory=WeakValueDictionary)
    verdicts: dict[PodShape, tuple[Verdict, NodeAllocatable | None]] = field(default_factory=dict)
    allocatable: NodeAllocatable | None = None  #: after the last admission; it is the same after most of them

    @cached_property
    def free_capacity(self) -> FreeCapacity:
        return measure_free_capacity(self.model.at(self.ledger, fit_check=False))

    def align(self, shape: PodShape) -> tuple[Verdict, NodeAllocatable | None]:
        """Return the verdict before the fit check of the whole host, and what is allocatable in it."""
        if shape in self.verdicts:
            return self.verdicts[shape]
        allocatable = self.model.host.rules.allocatable
        devices = self.ledger.devices
        if self.model.requests_nothing(shape.pod, devices.handled):
            verdict, after = self.anywhere.get((self.model, shape)) or self._decide(shape)[0], self.ledger
            self.anywhere[self.model, shape] = verdict
            if verdict.score is not None:
                host = self.model.at(self.ledger, fit_check=False)
                score = score_shared(host, free_capacity=self.free_capacity, preferred=verdict.score.preferred)
                verdict = replace(verdict, score=score, approximate=self.approximate)
        else:
            verdict, after = self._decide(shape)
        if verdict.admits and allocatable is not None:
            allocatable = allocatable.with_devices(after.devices.allocatable(shape.pod.uid))
            if allocatable != self.allocatable:
                self.allocatable = allocatable
            allocatable = self.allocatable
        result = self.verdicts[shape] = (verdict, allocatable if verdict.admits else None)
        return result

    def _decide(self, shape: PodShape) -> tuple[Verdict, Ledger]:
        """Return the verdict before the fit check, and the ledger after the pod."""
        if shape.demands and (problem := demand_problem(shape.pod)):
            return refused(Refusal(problem, code=UNKNOWN_DEMAND)), self.ledger
        try:
            decision = self.model.align(self.ledger, shape.pod)
        except WorkLimitError as error:
            return unknown(TOO_MUCH_WORK, str(error)), self.ledger
        except PodError as error:  # annotations that only some hosts read
            return Verdict(VerdictKind.REJECTS, "invalid pod", note=str(error)), self.ledger
        if decision.rejection is not None:
            return rejected(decision.rejection, disagreeing_resources(decision)), self.ledger
        possible = decision.possible
        if possible and (possible.rejection or not possible.complete):
            return unknown(MAY_BE_REJECTED, describe_possible_rejection(decision)), self.ledger
        if shape.demands:
            host = self.model.at(self.ledger, fit_check=False)
            if refusal := find_refusal(host, shape.pod, decision, exact=not self.approximate, claims=None):
                return refused(refusal), self.ledger
        after = decision.after or self.ledger
        has_devices = any(placement.devices for placement in decision.placements)
        inventories = after.devices.inventories if has_devices else None
        verdict = Verdict(
            VerdictKind.ADMITS,
            score=score_placement(self.model.at(after, fit_check=False), decision, before=self.free_capacity),
            approximate=self.approximate,
            shared_placements=decision.placements,
            alternatives=tuple(
                [
                    Verdict(VerdictKind.ADMITS, shared_placements=placements, inventories=inventories)
                    for placements in (possible.variants if possible else ())
                ]
            ),
            inventories=inventories,
        )
        return verdict, after


@dataclass(eq=False, slots=True, weakref_slot=True)
class UsageState:
    """All hosts of one alignment state whose pods use as much in total."""

    alignment: AlignmentState
    ledger: Ledger
    verdicts: dict[PodShape, Verdict] = field(default_factory=dict)
    by_markers: "dict[NodeSet, UsageState]" = field(default_factory=dict)  #: while markers are on these nodes only

    def with_markers_on(self, nodes: NodeSet) -> "UsageState":
        """Return this state while markers are on *nodes* only."""
        if nodes == ANYWHERE:
            return self
        state = self.by_markers.get(nodes)
        if state is None:
            ledger = withdraw_markers(self.ledger, nodes)
            state = self.by_markers[nodes] = _own_state(self.alignment.model, ledger, approximate=False)
        return state

    def forget(self, shape: PodShape) -> None:
        self.verdicts.pop(shape, None)
        for state in self.by_markers.values():
            state.alignment.verdicts.pop(state.alignment.model.counted(shape), None)
            state.verdicts.pop(shape, None)

    def verdict(self, shape: PodShape) -> Verdict:
        verdict = self.verdicts.get(shape)
        if verdict is None:
            counted_shape = self.alignment.model.counted(shape)
            verdict, allocatable = self.alignment.align(counted_shape)
            if allocatable is not None:
                failure = fit.check_fit(
                    counted_shape.pod,
                    request=None if counted_shape.pod.statuses else counted_shape.usage,
                    usage=self.ledger.used,
                    allocatable=allocatable,
                    others=map(POD_OF, self.ledger.pods.values()),
                )
                if failure:
                    verdict = rejected(reject_unfit(failure))
                elif verdict.score is not None:
                    score = consider_totals(
                        verdict.score,
                        self.ledger,
                        before=self.alignment.free_capacity,
                        allocatable=allocatable,
                        request=counted_shape.usage,
                    )
                    verdict = verdict if score is verdict.score else replace(verdict, score=score)
            self.verdicts[shape] = verdict
        return verdict


class VerdictCache:
    """Host states and pod shapes in use, and the last *max_states* states that no host is in any more."""

    def __init__(self, *, max_shapes: int, max_states: int = 0) -> None:
        self._max_shapes = max_shapes
        self._max_states = max_states
        self._recent: OrderedDict[UsageState, None] = OrderedDict()  #: the one asked for last is at the end
        self._states: WeakValueDictionary[Hashable, AlignmentState] = WeakValueDictionary()
        self._shapes: OrderedDict[Hashable, PodShape] = OrderedDict()  #: the one asked for last is at the end
        self._last: tuple[ref[Pod], PodShape] | None = None  #: asked for last, usually once for each of many hosts
        self._anywhere: dict[tuple[HostModel, PodShape], Verdict] = {}

    def alignment(self, model: HostModel, ledger: Ledger, *, approximate: bool) -> AlignmentState:
        key = (id(model), approximate, ledger.alignment_key())
        alignment = self._states.get(key)
        if alignment is None:
            alignment = self._states[key] = AlignmentState(model, ledger, approximate, self._anywhere)
        return alignment

    def state(self, model: HostModel, ledger: Ledger, *, approximate: bool) -> UsageState:
        alignment = self.alignment(model, ledger, approximate=approximate)
        key = used_key(ledger.used)
        state = alignment.states.get(key)
        if state is None:
            state = alignment.states[key] = UsageState(alignment, ledger)
        if self._max_states:
            self._recent[state] = None
            self._recent.move_to_end(state)
            if len(self._recent) > self._max_states:
                self._recent.popitem(last=False)
        return state

    def own_state(self, model: HostModel, ledger: Ledger, *, approximate: bool) -> UsageState:
        """Return a state with this very ledger, which has the pods of its host; where pods go is shared."""
        return UsageState(self.alignment(model, ledger, approximate=approximate), ledger)

    def shape(self, pod: Pod) -> PodShape:
        """Return the shape of *pod*; ``PodError`` if no host could decide on it."""
        if self._last is not None and self._last[0]() is pod:
            return self._last[1]
        key = shape_key(pod)
        shape = self._shapes.get(key)
        if shape is None:
            check_pod(pod)
            shape = self._shapes[key] = build_shape(pod)
        self._shapes.move_to_end(key)
        self._last = ref(pod), shape
        if len(self._shapes) > self._max_shapes:
            self._forget_oldest()
        return shape

    def _forget_oldest(self) -> None:
        """Forget the shapes that were asked for longest ago; several, since every state has to be looked at."""
        oldest = [self._shapes.popitem(last=False)[1] for _ in range(1 + self._max_shapes // 8)]
        self._anywhere.clear()
        for alignment in list(self._states.values()):
            states = list(alignment.states.values())
            for shape in oldest:
                alignment.verdicts.pop(shape, None)
                for state in states:
                    state.forget(shape)

    def forget_models(self) -> None:
        self._anywhere.clear()

    def __len__(self) -> int:
        """Return the number of distinct alignment states of all hosts."""
        return len(self._states)


def _own_state(model: HostModel, ledger: Ledger, *, approximate: bool) -> UsageState:
    """Return a state that no other host is in, although it may place pods alike."""
    return UsageState(AlignmentState(model, ledger, approximate, {}), ledger)


@dataclass(frozen=True, slots=True)
class TentativeHost:
    """A host, and pods that were tried on the host one after the other; equal tentative hosts decide alike."""

    states: tuple[UsageState, ...]  #: in any of which it may be
    make_state: "_MakeState"  #: makes a state after a change; states of all hosts may be shared
    full: bool  #: whether pods with resources of their own wait until a report contains an earlier one
    doubtful: bool  #: whether all pods wait
    unsettled: frozenset[str]  #: resources of which an earlier pod may get other devices than predicted
    terminating: frozenset[str]

    def verdict(self, shape: PodShape) -> Verdict:
        states = self.states
        verdict = states[0].verdict(shape) if len(states) == 1 else combine([state.verdict(shape) for state in states])
        if (self.doubtful or (self.full and verdict.takes_resources)) and verdict.admits:
            return _UNCONFIRMED
        if self.unsettled and not self.unsettled.isdisjoint(shape.usage.scalars):
            return _UNSETTLED
        return verdict

    @property
    def key(self) -> Hashable:
        """Equal for hosts that decide alike on all pods that are not critical."""
        return tuple([(id(state.alignment), used_key(state.ledger.used)) for state in self.states]), self.unsettled

    def holds(self, uid: str) -> bool:
        """Return whether the host has a pod in every possible state."""
        return all(uid in state.ledger.pods for state in self.states)

    def without(self, uids: Collection[str]) -> "TentativeHost":
        """Return this host after the end of these pods; its states must not be shared."""
        model, approximate = self.states[0].alignment.model, self.states[0].alignment.approximate
        ledgers = [model.without(state.ledger, uids) for state in self.states]
        return replace(
            self, states=tuple([self.make_state(model, ledger, approximate=approximate) for ledger in ledgers])
        )

    def with_pod(self, shape: PodShape) -> "TentativeHost | None":
        """Return this host after it has admitted a pod, at any moment while pods end; ``None``: it does not."""
        if not self.verdict(shape).admits:
            return None
        # Hosts share states, so a ledger may contain pods that another search has tried.
        shape_uids = {uid for state in self.states for uid in state.ledger.pods if uid.startswith(SHAPE_UID)}
        number = len(shape_uids)
        while f"{SHAPE_UID}-{number}" in shape_uids:
            number += 1
        pod = replace(shape.pod, uid=f"{SHAPE_UID}-{number}")
        model, approximate = self.states[0].alignment.model, self.states[0].alignment.approximate
        decisions = [model.at(state.ledger).decide_without_plugins(pod) for state in self.states]
        after = [ledger for decision in decisions if (ledger := ledger_after(decision)) is not None]
        ledgers = with_ends(after, self.terminating, lambda ledger, uid: model.without(ledger, (uid,)))
        return replace(
            self,
            states=tuple([self.make_state(model, ledger, approximate=approximate) for ledger in ledgers[:MAX_STATES]]),
            doubtful=self.doubtful or len(ledgers) > MAX_STATES,
            unsettled=self.unsettled.union(*map(unsettled_devices, decisions)),
        )


class _MakeState(Protocol):
    def __call__(self, model: HostModel, ledger: Ledger, *, approximate: bool) -> UsageState: ...


_FEW = 8  #: fewer than one in so many admitting hosts are sorted by themselves
_Rank = tuple[bool, float]  #: whether it is approximate, and minus the score


@dataclass(eq=False, slots=True)
class _ShapeTable:
    """The verdicts of all hosts about one shape, as of ``version``, and the admitting hosts by their scores."""

    verdicts: dict[str, Verdict] = field(default_factory=dict)  #: by host
    version: int = -1
    _ranks: dict[str, _Rank] = field(default_factory=dict)  #: of the admitting hosts
    _by_rank: dict[_Rank, dict[str, None]] = field(default_factory=dict)

    def put(self, host: str, verdict: Verdict | None) -> None:
        """Replace the verdict of a host; ``None``: the host is gone."""
        if self.verdicts.pop(host, None) is not None and (rank := self._ranks.pop(host, None)) is not None:
            del self._by_rank[rank][host]
            if not self._by_rank[rank]:
                del self._by_rank[rank]
        if verdict is not None:
            self.verdicts[host] = verdict
            if verdict.kind is VerdictKind.ADMITS and verdict.score is not None:
                rank = self._ranks[host] = (verdict.approximate, -verdict.score.total)
                self._by_rank.setdefault(rank, {})[host] = None

    def admitting(self) -> Collection[str]:
        return self._ranks

    def by_rank(self, among: Collection[str] | None = None) -> Iterator[str]:
        """Yield the admitting hosts, or only hosts *among* these names, best first, and equal hosts by name."""
        if among is not None and len(among) < len(self._ranks) // _FEW:  # sort these instead of walking all
            yield from sorted(self._ranks.keys() & among, key=lambda host: (self._ranks[host], host))
            return
        for rank in sorted(self._by_rank):
            yield from sorted(host for host in self._by_rank[rank] if among is None or host in among)

    def best(self, limit: int, *, among: Collection[str], last: Collection[str]) -> list[str]:
        """Return the best hosts, hosts in *last* after the others, and equal hosts in the order of their changes."""
        best_hosts: list[str] = []
        for late in (False, True):
            for rank in sorted(self._by_rank):
                for host in self._by_rank[rank]:
                    if (host in last) is late and host in among:
                        best_hosts.append(host)
                        if len(best_hosts) >= limit:
                            return best_hosts
        return best_hosts


class HostVerdicts:
    def __init__(
        self,
        records: Mapping[str, HostRecord],
        *,
        max_unconfirmed: int | None,
        max_shapes: int,
        max_states: int,
        on_defect: DefectListener | None = None,
    ) -> None:
        self._records = records
        self._on_defect = on_defect
        self._max_unconfirmed = max_unconfirmed
        self._cache = VerdictCache(max_shapes=max_shapes, max_states=max_states)
        self._states: dict[str, tuple[UsageState, ...]] = {}  #: host → the states in any of which it may be
        self._tables: WeakKeyDictionary[PodShape, _ShapeTable] = WeakKeyDictionary()
        self._version = 0
        self.kept = 0  #: verdicts in answers about all hosts that were computed before
        self.renewed = 0  #: verdicts in answers about all hosts that were computed for the answer
        self._changed: OrderedDict[str, int] = OrderedDict()  #: host → version of its last change, ascending

    @property
    def distinct_states(self) -> int:
        return len(self._cache)

    def touch(self, host: str) -> None:
        """Record that a host with a report has changed."""
        self._version += 1
        self._changed[host] = self._version
        self._changed.move_to_end(host)
        self._states.pop(host, None)

    def forget(self, host: str) -> None:
        """Forget a host that is gone."""
        self._changed.pop(host, None)
        self._states.pop(host, None)
        for table in self._tables.values():
            table.put(host, None)

    def forget_order(self) -> None:
        """Forget the order in which hosts have changed, which decides between equal ones."""
        self._tables.clear()

    def forget_models(self) -> None:
        """Forget verdicts of kinds of hosts that may no longer exist."""
        self._cache.forget_models()

    def shape(self, pod: Pod) -> PodShape:
        """Return the shape of *pod*; ``PodError`` if no host could decide on it."""
        return self._cache.shape(pod)

    def of_all(self, pod: Pod) -> _ShapeTable:
        """Return the verdicts of all hosts; verdicts of unchanged hosts are kept."""
        shape = self._cache.shape(pod)
        table = self._tables.get(shape)
        if table is None:
            table = self._tables[shape] = _ShapeTable()
        renewed_before = self.renewed
        if table.version < 0:
            for name, record in self._records.items():
                table.put(name, self._verdict(record, shape))
            self.renewed += len(table.verdicts)
        else:
            for name, version in reversed(self._changed.items()):
                if version <= table.version:
                    break
                table.put(name, self._verdict(self._records[name], shape))
                self.renewed += 1
        self.kept += len(table.verdicts) - (self.renewed - renewed_before)
        table.version = self._version
        return table

    def renew(self, pod: Pod, *, seconds: float) -> bool:
        """Renew verdicts of changed hosts for about *seconds*; return whether all are renewed."""
        shape, end = self._cache.shape(pod), time.monotonic() + seconds
        table = self._tables.setdefault(shape, _ShapeTable())
        for name, version in list(self._changed.items()):
            if version > table.version:
                table.put(name, self._verdict(self._records[name], shape))
                table.version = version
                self.renewed += 1
                if time.monotonic() >= end:
                    break
        else:
            table.version = self._version
        return table.version == self._version

    def undecided(self, pod: Pod, hosts: Iterable[str]) -> list[Callable[[], object]]:
        """Return the decisions that verdicts of *hosts* lack; another thread may call them, and they are kept.

        No two hosts decide alike on critical pods, and on demands for devices, so these decisions are not kept.
        """
        shape = self._cache.shape(pod)
        records = [self._records[host] for host in hosts if host in self._records and not shape.by_host]
        alignments = [state.alignment for record in records for state in self._host_states(record, by_host=False)]
        return [
            partial(alignment.align, shape)
            for alignment in dict.fromkeys(alignments)
            if shape not in alignment.verdicts
        ]

    def of_one(self, pod: Pod, record: HostRecord, beside: AbstractSet[str] = frozenset()) -> Verdict:
        """Return the verdict of one host; a pod that is on it already keeps its placement.

        The pod does not wait until reports contain the pods *beside* it.
        """
        binding = record.binding(pod.uid)
        if binding or pod.uid in record.ledger.pods:
            for ledger in record.states().ledgers[:1]:
                if pod.uid in ledger.pods:
                    if refusal := _refusal_of_assumed(record, pod):
                        return refused(refusal)
                    placements = record.model.at(ledger).decide_without_plugins(pod).placements
                    score = binding.verdict.score if binding and binding.verdict else None
                    return Verdict(VerdictKind.ADMITS, score=score, shared_placements=placements)
        return self._verdict(record, self._cache.shape(pod), beside)

    def steered(self, pod: Pod, record: HostRecord) -> dict[NodeSet, Verdict]:
        """Return the NUMA nodes that *pod* can be steered to, and what it gets there; see ``of_steered``."""
        nodes = marker_nodes(record.ledger) if self.of_steered(pod, record, ANYWHERE).admits else 0
        verdicts = {node: self.of_steered(pod, record, node) for node in bits.split(nodes)}
        return {node: verdict for node, verdict in verdicts.items() if verdict.admits}

    def of_steered(self, pod: Pod, record: HostRecord, nodes: NodeSet) -> Verdict:
        """Return the verdict of a host with markers on *nodes* only: it admits the pod if everything goes there."""
        possible, shape = record.states(), self._cache.shape(pod)
        if not possible.ledgers or record.report.approximate or shape.critical:
            return unknown(possible.problem or NOT_THERE)
        if record is self._records.get(record.name):
            current_states = self._host_states(record, by_host=shape.by_host)
        else:
            current_states = tuple([_own_state(record.model, ledger, approximate=False) for ledger in possible.ledgers])
        states = tuple([state.with_markers_on(nodes) for state in current_states])
        verdict = self._tentative(record, states, frozenset()).verdict(shape)
        if verdict.inventories is not None:
            verdict = verdict.for_host(record.ledger.devices.inventories)
        there = nodes == ANYWHERE or all(
            are_on(nodes, placement, record.ledger) for placement in verdict.possible_placements
        )
        return verdict if there or not verdict.admits else unknown(NOT_THERE)

    def _verdict(self, record: HostRecord, shape: PodShape, beside: AbstractSet[str] = frozenset()) -> Verdict:
        """Return the verdict of one host; if defects have a listener, one makes only this verdict unknown."""
        try:
            return self._decide(record, shape, beside)
        except Exception as error:
            if not self._is_reported(record.name, error):
                raise
            return defect(error)

    def _is_reported(self, host: str, error: Exception) -> bool:
        """Pass an error to the listener; return whether there is one, and the error is a defect."""
        if self._on_defect is None or isinstance(error, PodError):
            return False
        self._on_defect(host, error)
        return True

    def _decide(self, record: HostRecord, shape: PodShape, beside: AbstractSet[str]) -> Verdict:
        possible = record.states()
        if not possible.ledgers:
            return unknown(possible.problem, possible.detail)
        verdict = self._tentative(record, self._host_states(record, by_host=shape.by_host), beside).verdict(shape)
        return verdict if verdict.inventories is None else verdict.for_host(record.ledger.devices.inventories)

    def tentative(
        self, record: HostRecord, *, by_host: bool, beside: AbstractSet[str] = frozenset(), own_pods: bool = False
    ) -> TentativeHost | None:
        """Return a host to try pods on. They do not wait for the pods *beside* them; ``None``: its state is unknown.

        *by_host*: whether the decision on one of the pods depends on more than the state of the host. With *own_pods*,
        its states have the pods of this very host.
        """
        possible = record.states()
        if not possible.ledgers:
            return None
        if not by_host and not possible.terminating and not own_pods:
            states = self._host_states(record, by_host=False)
            return self._tentative(record, states, beside, self._cache.state)
        model, approximate = record.model, record.report.approximate
        make_state = self._cache.own_state if own_pods and not by_host else _own_state
        states = tuple([make_state(model, ledger, approximate=approximate) for ledger in possible.ledgers])
        return self._tentative(record, states, beside, make_state)

    def of_tentative(self, host: str, tentative: TentativeHost, shape: PodShape) -> Verdict:
        """Return the verdict of the host *tentative*; if defects have a listener, one makes it unknown."""
        try:
            return tentative.verdict(shape)
        except Exception as error:
            if not self._is_reported(host, error):
                raise
            return defect(error)

    def admit_tentatively(self, host: str, tentative: TentativeHost, shape: PodShape) -> TentativeHost | None:
        """Return the host *tentative* after it has admitted a pod; ``None``: it does not."""
        try:
            return tentative.with_pod(shape)
        except Exception as error:
            if not self._is_reported(host, error):
                raise
            return None

    def _tentative(
        self,
        record: HostRecord,
        states: tuple[UsageState, ...],
        beside: AbstractSet[str],
        make_state: "_MakeState | None" = None,
    ) -> TentativeHost:
        possible, limit = record.states(), self._max_unconfirmed
        full = limit is not None and (possible.steered or len(possible.unconfirmed - beside) >= limit)
        doubtful = limit is not None and possible.doubtful
        return TentativeHost(states, make_state or _own_state, full, doubtful, possible.unsettled, possible.terminating)

    def _host_states(self, record: HostRecord, *, by_host: bool) -> tuple[UsageState, ...]:
        """Return the possible states of a host; with *by_host*, states that no other host is in."""
        states = self._states.get(record.name)
        if states is None or by_host:
            cache = VerdictCache(max_shapes=1) if by_host else self._cache
            model, approximate = record.model, record.report.approximate
            states = tuple([cache.state(model, ledger, approximate=approximate) for ledger in record.states().ledgers])
            if not by_host:
                self._states[record.name] = states
        return states


def refused(refusal: Refusal) -> Verdict:
    """Return the verdict of a host that does not meet what a pod demands."""
    return Verdict(VerdictKind.REJECTS, refusal.reason, note=refusal.detail, refusal_code=refusal.code)


def _refusal_of_assumed(record: HostRecord, pod: Pod) -> Refusal | None:
    """Return which demand of an assumed pod is not met any more; ``None``: none. A steered pod meets all."""
    binding = record.binding(pod.uid) if has_demands(pod) else None
    if binding is None or binding.observed or binding.steered:
        return None
    exact, ledgers = not record.report.approximate, record.before(pod.uid).states().ledgers
    refusals = (find_refusal(record.model.at(ledger), pod, exact=exact, claims=None) for ledger in ledgers)
    return next(filter(None, refusals), None)


def used_key(usage: UsedResources) -> Hashable:
    """Return *usage* as a key."""
    return (*usage[:4], frozenset(usage.scalars.items())) if usage.scalars else usage[:4]
