"""The verdicts of all hosts of a cluster, kept until a host changes.

For every pod shape there is a table with the verdict of each host. Before it is used, the verdicts of the hosts that
changed since are renewed; hosts in the same state share them.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from alignup.align.workload import Pod
from alignup.placement.host_record import HostRecord
from alignup.placement.pod_shape import PodShape
from alignup.placement.verdict import (
    UNSETTLED_DEVICES,
    WAITS_FOR_CONFIRMATION,
    Verdict,
    VerdictKind,
    combine,
    unknown,
)
from alignup.placement.verdict_cache import HostState, VerdictCache


@dataclass(frozen=True, slots=True)
class _Condition:
    """The facts that verdicts about a host depend on."""

    states: tuple[HostState, ...]  #: in any of which it may be; empty: unknown
    waits: bool  #: whether pods with resources of their own have to wait for a confirmation
    doubtful: bool  #: whether all pods have to
    unsettled: frozenset[str]


class _ShapeTable:
    """The verdicts of all hosts about one shape, as of ``version``, and the admitting hosts by their scores."""

    __slots__ = ("_by_rank", "_ranks", "found", "version")

    def __init__(self) -> None:
        self.found: dict[str, Verdict] = {}
        self.version = -1
        self._ranks: dict[str, _Rank] = {}  #: of the admitting hosts
        self._by_rank: dict[_Rank, dict[str, None]] = {}

    def put(self, host: str, verdict: Verdict | None) -> None:
        """Replace the verdict of a host; ``None``: the host is gone."""
        self.found.pop(host, None)
        rank = self._ranks.pop(host, None)
        if rank is not None:
            del self._by_rank[rank][host]
            if not self._by_rank[rank]:
                del self._by_rank[rank]
        if verdict is not None:
            self.found[host] = verdict
            if verdict.kind is VerdictKind.ADMITS and verdict.score is not None:
                rank = self._ranks[host] = (verdict.approximate, -verdict.score.total)
                self._by_rank.setdefault(rank, {})[host] = None

    def best(self, limit: int, *, among: Collection[str], last: Collection[str]) -> list[str]:
        """Return the best hosts, those in *last* after the others; equal ones in the order of their changes."""
        chosen: list[str] = []
        for late in (False, True):
            for rank in sorted(self._by_rank):
                for host in self._by_rank[rank]:
                    if (host in last) is late and host in among:
                        chosen.append(host)
                        if len(chosen) >= limit:
                            return chosen
        return chosen


_Rank = tuple[bool, float]  #: whether it is approximate, and minus the score


class HostVerdicts:
    def __init__(
        self, records: Mapping[str, HostRecord], *, max_unconfirmed: int | None, max_shapes: int, max_states: int
    ) -> None:
        self._records = records
        self._max_unconfirmed = max_unconfirmed
        self._cache = VerdictCache(max_shapes=max_shapes, max_states=max_states)
        self._conditions: dict[str, _Condition] = {}
        self._tables: dict[PodShape, _ShapeTable] = {}
        self._version = 0
        self.kept = self.renewed = 0  #: verdicts in answers about all hosts
        self._changed: OrderedDict[str, int] = OrderedDict()  #: host → version of its last change, ascending

    @property
    def distinct_states(self) -> int:
        return len(self._cache)

    def touch(self, host: str) -> None:
        """Record that a host has changed, or is gone."""
        self._version += 1
        self._changed[host] = self._version
        self._changed.move_to_end(host)
        self._conditions.pop(host, None)

    def of_all(self, pod: Pod) -> _ShapeTable:
        """Return the verdicts of all hosts; those of unchanged hosts are kept."""
        shape = self._shape(pod)
        table = self._tables.get(shape)
        if table is None:
            table = self._tables[shape] = _ShapeTable()
        before = self.renewed
        if table.version < 0:
            for name, known_record in self._records.items():
                table.put(name, self._verdict(known_record, shape))
            self.renewed += len(table.found)
        else:
            for name, version in reversed(self._changed.items()):
                if version <= table.version:
                    break
                record = self._records.get(name)
                table.put(name, self._verdict(record, shape) if record else None)
                self.renewed += record is not None
        self.kept += len(table.found) - (self.renewed - before)
        table.version = self._version
        return table

    def _shape(self, pod: Pod) -> PodShape:
        shape = self._cache.shape(pod)
        for dropped in self._cache.dropped:
            self._tables.pop(dropped, None)
        return shape

    def of_one(self, pod: Pod, record: HostRecord) -> Verdict:
        """Return the verdict of one host; a pod that is on it already keeps its placement."""
        binding = record.binding(pod.uid)
        if binding or pod.uid in record.ledger.pods:
            for ledger in record.states().ledgers[:1]:
                if pod.uid in ledger.pods:
                    placements = record.model.at(ledger).decide_without_plugins(pod).placements
                    score = binding.verdict.score if binding and binding.verdict else None
                    return Verdict(VerdictKind.ADMITS, score=score, shared_placements=placements)
        return self._verdict(record, self._shape(pod))

    def _verdict(self, record: HostRecord, shape: PodShape) -> Verdict:
        condition = self._condition(record)
        if not condition.states:
            return unknown(record.states().problem)
        if shape.critical:  # depends on the pods of the host, which states do not tell
            private = VerdictCache(max_shapes=1)
            approximate = record.report.approximate
            states = [
                private.state(record.model, ledger, approximate=approximate) for ledger in record.states().ledgers
            ]
            verdict = combine([state.verdict(shape) for state in states])
        elif len(condition.states) == 1:
            verdict = condition.states[0].verdict(shape)
        else:
            verdict = combine([state.verdict(shape) for state in condition.states])
        if verdict.admits and (condition.doubtful or (condition.waits and verdict.takes_resources)):
            return unknown(WAITS_FOR_CONFIRMATION)
        if condition.unsettled and not condition.unsettled.isdisjoint(shape.usage.scalars):
            return unknown(UNSETTLED_DEVICES)
        return verdict if verdict.inventories is None else verdict.for_host(record.ledger.devices.inventories)

    def _condition(self, record: HostRecord) -> _Condition:
        known = self._conditions.get(record.name)
        if known is None:
            possible = record.states()
            approximate = record.report.approximate
            known = self._conditions[record.name] = _Condition(
                tuple(
                    [self._cache.state(record.model, ledger, approximate=approximate) for ledger in possible.ledgers]
                ),
                self._max_unconfirmed is not None and possible.unconfirmed >= self._max_unconfirmed,
                self._max_unconfirmed is not None and possible.doubtful,
                possible.unsettled,
            )
        return known
