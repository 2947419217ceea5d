"""The audit of the runs of a user."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from alignup.align import bits
from alignup.run import placement_audit as placement
from alignup.run import registry
from alignup.run.placement_audit import DeviceTopology, Drift, DriftKind, RunProcesses
from alignup.run.request import CONTAINER, GPU
from alignup.run.run_record import RunRecord


class AuditedAgent(Protocol):
    address: str

    def pod(self, uid: str) -> Mapping[str, Any] | None: ...


class AuditReport(NamedTuple):
    runs: tuple[RunProcesses, ...]
    drifts: tuple[Drift, ...]
    fixed: tuple[Drift, ...] = ()
    failures: tuple[str, ...] = ()  #: why something was not fixed


def audit(directory: Path, *, agent: AuditedAgent | None, fix: bool) -> AuditReport:
    """Compare the runs in *directory* with what was intended; with *fix* restore them."""
    if fix:
        registry.remove_finished_runs(directory)
    first = _audit_once(directory, agent)
    if not fix or not first.drifts:
        return first
    drifted = {drift.uid for drift in first.drifts}
    with registry.RunRegistry(directory).locked():
        runs = [run for run in first.runs if run.record.uid in drifted]
        failures = [failure for run in runs for failure in placement.restore_run(run)]
    second = _audit_once(directory, agent)
    left = {drift.key for drift in second.drifts}
    fixed = tuple(drift for drift in first.drifts if drift.key not in left)
    return second._replace(fixed=fixed, failures=tuple(failures))


def _audit_once(directory: Path, agent: AuditedAgent | None) -> AuditReport:
    runs = registry.active_runs(directory)
    local = [run for run in runs if not run.record.agent]
    remote = [run for run in runs if run.record.agent]
    drifts = (
        *placement.audit_runs(local, devices=_current_devices(local)),
        *_compare_with_ledger([run.record for run in local], directory),
        *placement.audit_runs(remote),
        *_compare_with_agent([run.record for run in remote], agent),
    )
    return AuditReport(runs, drifts)


def _compare_with_ledger(records: Sequence[RunRecord], directory: Path) -> Iterator[Drift]:
    if not any(record.exclusive for record in records):
        return
    from alignup.store.state_store import StateStore  # noqa: PLC0415 - slow to import

    with registry.RunRegistry(directory).locked():
        stored = StateStore(directory).load()
    pods = stored.pods if stored else ()
    held = {pod.entry.pod.uid: pod.entry.cpus.containers.get(CONTAINER, "") for pod in pods}
    for record in records:
        if record.exclusive:
            yield from _compare_cpus(record, held.get(record.uid), where="the ledger")


def _compare_with_agent(records: Sequence[RunRecord], agent: AuditedAgent | None) -> Iterator[Drift]:
    for record in records:
        if agent is None or agent.address != record.agent:
            yield from _compare_cpus(record, None, where=f"the agent at {record.agent}", missing="no answer")
            continue
        pod = agent.pod(record.uid)
        placements = pod["placements"] if pod else ()
        if record.exclusive or not placements:
            cpus = placements[0]["given"].get("cpu", {}).get("cpu") if placements else None
            yield from _compare_cpus(record, cpus, where="the agent")


def _compare_cpus(record: RunRecord, held: str | None, *, where: str, missing: str = "no such run") -> Iterator[Drift]:
    if held is None or bits.parse(held) != record.cpus:
        intended, actual = f"CPUs {bits.show(record.cpus)}", missing if held is None else f"CPUs {held}"
        yield placement.make_drift(record, DriftKind.DECISION, where, intended=intended, actual=actual)


def _current_devices(runs: Sequence[RunProcesses]) -> DeviceTopology | None:
    """The GPUs that discovery finds, and other devices as they were declared; ``None`` when no run has a GPU."""
    if not any(GPU in run.record.devices for run in runs):
        return None
    from alignup.machines import discover  # noqa: PLC0415 - slow to import

    found = {(device.resource, device.id): device.nodes for device in discover().devices}
    for run in runs:
        for resource, ids in run.record.devices.items():
            if resource != GPU:
                found |= {(resource, id_): nodes for id_, nodes in ids.items()}
    return found
