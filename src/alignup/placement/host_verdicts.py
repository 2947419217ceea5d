"""The verdicts of all hosts of a cluster, kept until a host changes.

For every pod shape there is a table with the verdict of each host. Before it is used, the verdicts of the hosts that
changed since are renewed; hosts in the same state share them.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from alignup.align.workload import Pod
from alignup.placement.host_record import HostRecord
from alignup.placement.shape import PodShape
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
    """What verdicts about a host depend on."""

    states: tuple[HostState, ...]  #: in any of which it may be; empty: unknown
    waits: bool  #: whether pods with resources of their own have to wait for a confirmation
    doubtful: bool  #: whether all pods have to
    unsettled: frozenset[str]


@dataclass(slots=True)
class _ShapeTable:
    """The verdicts of all hosts about one shape, as of ``version``."""

    found: dict[str, Verdict]
    version: int


class HostVerdicts:
    def __init__(self, records: Mapping[str, HostRecord], *, max_unconfirmed: int | None, max_shapes: int) -> None:
        self._records = records
        self._max_unconfirmed = max_unconfirmed
        self._cache = VerdictCache(max_shapes=max_shapes)
        self._conditions: dict[str, _Condition] = {}
        self._tables: dict[PodShape, _ShapeTable] = {}
        self._version = 0
        self.kept = self.renewed = 0  #: verdicts in answers about all hosts
        self._changed: OrderedDict[str, int] = OrderedDict()  #: host → version of its last change, ascending

    @property
    def distinct_states(self) -> int:
        return len(self._cache)

    def touch(self, host: str) -> None:
        """A host has changed, or is gone."""
        self._version += 1
        self._changed[host] = self._version
        self._changed.move_to_end(host)
        self._conditions.pop(host, None)

    def of_all(self, pod: Pod) -> dict[str, Verdict]:
        """The verdicts of all hosts; those of unchanged hosts are kept."""
        shape = self._shape(pod)
        table = self._tables.get(shape)
        if table is None:
            table = self._tables[shape] = _ShapeTable({}, -1)
        before = self.renewed
        if table.version < 0:
            table.found = {name: self._verdict(record, shape) for name, record in self._records.items()}
            self.renewed += len(table.found)
        else:
            for name, version in reversed(self._changed.items()):
                if version <= table.version:
                    break
                record = self._records.get(name)
                if record is None:
                    table.found.pop(name, None)
                else:
                    table.found[name] = self._verdict(record, shape)
                    self.renewed += 1
        self.kept += len(table.found) - (self.renewed - before)
        table.version = self._version
        return dict(table.found)

    def _shape(self, pod: Pod) -> PodShape:
        shape = self._cache.shape(pod)
        for dropped in self._cache.dropped:
            self._tables.pop(dropped, None)
        return shape

    def of_one(self, pod: Pod, record: HostRecord) -> Verdict:
        """The verdict of one host; a pod that is on it already keeps its placement."""
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
            states = [private.state(record.model, one, approximate=approximate) for one in record.states().ledgers]
            found = combine([state.verdict(shape) for state in states])
        elif len(condition.states) == 1:
            found = condition.states[0].verdict(shape)
        else:
            found = combine([state.verdict(shape) for state in condition.states])
        if found.admits and (condition.doubtful or (condition.waits and found.takes_resources)):
            return unknown(WAITS_FOR_CONFIRMATION)
        if condition.unsettled and not condition.unsettled.isdisjoint(shape.usage.scalars):
            return unknown(UNSETTLED_DEVICES)
        return found if found.inventories is None else found.for_host(record.ledger.devices.inventories)

    def _condition(self, record: HostRecord) -> _Condition:
        known = self._conditions.get(record.name)
        if known is None:
            possible = record.states()
            approximate = record.report.approximate
            known = self._conditions[record.name] = _Condition(
                tuple([self._cache.state(record.model, one, approximate=approximate) for one in possible.ledgers]),
                self._max_unconfirmed is not None and possible.unconfirmed >= self._max_unconfirmed,
                self._max_unconfirmed is not None and possible.doubtful,
                possible.unsettled,
            )
        return known
