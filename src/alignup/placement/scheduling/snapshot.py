"""The present state as events, from which another scheduling state continues as this one does.

A host is its last report. Everything else that the state has remembered, of hosts, assumed pods, kept nodes, gangs, and
the gate, is one :class:`StateRestored`, by attribute. What is empty is left out, so of a new state nothing is left. Not
contained are kept verdicts and models of hosts, which are computed again.
"""

from collections.abc import Mapping
from dataclasses import is_dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from alignup.placement.host_record import HostRecord
from alignup.placement.scheduling.events import DroppedHost, Event, HostReported, StateRestored

if TYPE_CHECKING:
    from alignup.placement.scheduling.scheduling_state import SchedulingState

_PARTS = ("cluster", "assumptions", "kept_nodes", "gangs")
_GATE_PARTS = ("gate", "gate.queue", "gate.releases", "gate.claims", "gate._avoided")
_HOST = ("_log", "_terminating", "rejected", "_skipped")
#: Attributes that are not data of a part: the same in a new state, or written in another way.
_OTHERS = frozenset(("options", "_turn", "_handlers", "_gate_handlers", "_records", "_dropped", "_begun", "_seconds"))


def take_snapshot(state: "SchedulingState") -> list[Event]:
    """Return the events that bring a new scheduling state, without a gate, into this state."""
    cluster, gate = state.cluster, state.gate
    paths = ("", *_PARTS, *(_GATE_PARTS if gate else ()))
    parts = {path: values for path in paths if (values := _data(_part(state, path)))}
    records = [record for name in cluster.hosts if (record := cluster.record(name))]
    hosts = {record.name: values for record in records if (values := _host_data(record))}
    dropped = [DroppedHost(record.report, _host_data(record), uids) for record, uids in state.assumptions.dropped()]
    restored = StateRestored(parts, hosts, tuple(dropped), gate.options if gate else None)
    return [*(HostReported(record.report) for record in records), restored]


def restore(state: "SchedulingState", event: StateRestored) -> None:
    """Continue from a snapshot in a new state that has its hosts."""
    cluster = state.cluster
    for report, values, uids in event.dropped:
        cluster.confirm(report)
        record = cluster.record(report.host)
        if record is not None:
            _set(record, values)
            cluster.remove_host(record.name)
            state.assumptions.remember_host(record, uids)
    for name, values in event.hosts.items():
        _set(cluster.record(name), values)
    if event.gate:
        state.open_gate(event.gate)
    for path, values in event.parts.items():
        _set(_part(state, path), values)


def _part(state: "SchedulingState", path: str) -> object:
    return attrgetter(path)(state) if path else state


def _data(part: object) -> dict[str, Any]:
    """Return the attributes that are data, and not other parts of the state or functions."""
    values = {name: value for name, value in vars(part).items() if name not in _OTHERS and value}
    return {
        name: value
        for name, value in values.items()
        if (isinstance(value, dict | list | set | int | float) and value != float("-inf")) or is_dataclass(value)
    }


def _host_data(record: HostRecord) -> dict[str, Any]:
    return {name: value for name in _HOST if (value := getattr(record, name))}


def _set(part: object, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if not hasattr(part, name):
            raise AttributeError(f"the snapshot is of another version of alignup: {type(part).__name__} has no {name}")
        setattr(part, name, value)
