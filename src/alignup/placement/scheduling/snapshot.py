"""The present state as events, from which another scheduling state continues as this one does.

A host is its last report. Everything else that the state has remembered, of hosts, assumed pods, kept nodes, gangs, and
the gate, is one :class:`StateRestored`: the attributes of each part of the state that differ from a new state.
So the snapshot of a new state is empty. Not contained are verdicts and models of hosts, which are computed again. A
snapshot with functions cannot be written; it is taken when the steps are over that wait for them.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import is_dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from alignup.placement.cluster import Cluster
from alignup.placement.host_record import HostRecord
from alignup.placement.scheduling.events import DroppedHost, Event, HostReported, StateRestored

if TYPE_CHECKING:
    from alignup.placement.scheduling.scheduling_state import SchedulingState

_HOST = ("_log", "_terminating", "rejected", "_skipped")
#: Attributes that are computed from others, written in another way, or of no meaning between two events.
_OTHERS = frozenset(("_turn", "_handlers", "_gate_handlers", "_models", "_records", "_verdicts", "_dropped", "_rooms"))
_DATA = (dict, list, tuple, set, frozenset, deque, str, int, float, type(None))


def take_snapshot(state: "SchedulingState", new: "SchedulingState") -> list[Event]:
    """Return the events that bring a *new* state, in which nothing has happened, into this state."""
    cluster, gate = state.cluster, state.gate
    if gate:
        new.open_gate(gate.options)
    new_parts = {path: _data(part) for path, part in _parts(new).items()}
    parts = {
        path: {name: value for name, value in _data(part).items() if value != new_parts[path].get(name, _parts)}
        for path, part in _parts(state).items()
    }
    records = [record for name in cluster.hosts if (record := cluster.record(name))]
    dropped_hosts = [
        DroppedHost(record.report, _host_data(record), uids) for record, uids in state.assumptions.dropped()
    ]
    restored_state = StateRestored(
        {path: values for path, values in parts.items() if values},
        {record.name: values for record in records if (values := _host_data(record))},
        tuple(dropped_hosts),
        gate.options if gate else None,
    )
    return [*(HostReported(record.report) for record in records), restored_state]


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
        _set(attrgetter(path)(state) if path else state, values)


def _parts(state: object) -> dict[str, object]:
    """Return the state, and all objects of this package that it consists of, by the names of their attributes."""
    parts, known_ids = {"": state}, {id(state)}
    stack = [("", state)]
    while stack:
        path, part = stack.pop()
        for name, value in vars(part).items():
            if name not in _OTHERS and id(value) not in known_ids and _is_part(value):
                known_ids.add(id(value))
                stack.append((f"{path}.{name}".lstrip("."), value))
                parts[stack[-1][0]] = value
    return parts


def _is_part(value: object) -> bool:
    package = Cluster.__module__.rpartition(".")[0]
    return type(value).__module__.startswith(package) and hasattr(value, "__dict__") and not is_dataclass(value)


def _data(part: object) -> dict[str, Any]:
    values = {name: value for name, value in vars(part).items() if name not in _OTHERS}
    return {name: value for name, value in values.items() if isinstance(value, _DATA) or is_dataclass(value)}


def _host_data(record: HostRecord) -> dict[str, Any]:
    return {name: value for name in _HOST if (value := getattr(record, name))}


def _set(part: object, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if not hasattr(part, name):
            raise AttributeError(f"the snapshot is of another version of alignup: {type(part).__name__} has no {name}")
        setattr(part, name, value)
