"""Looking at everything that was placed: what ``alignup audit`` finds, and puts back."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alignup.align import bits
from alignup.cli import asking, housing
from alignup.cli.asking import RunClient
from alignup.cli.client import AgentOptions
from alignup.cli.housing import ContainerAudit
from alignup.enforce import audit
from alignup.enforce.audit import DeviceTopology, Drift, DriftKind, RunProcesses
from alignup.enforce.containers import ContainerProcesses
from alignup.enforce.run_record import RunRecord
from alignup.runs import registry
from alignup.runs.request import CONTAINER, GPU


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What was found."""

    runs: tuple[RunProcesses, ...]
    drifts: tuple[Drift, ...]  #: what is not as intended, after fixing if that was asked for
    fixed: tuple[Drift, ...] = ()  #: what was not, and is again
    troubles: tuple[str, ...] = ()  #: why something could not be fixed, or not be looked at
    containers: tuple[ContainerProcesses, ...] = ()
    runtime: str = ""  #: that of the agent which runs the containers; empty: no agent does


def inspect(directory: Path, *, where: AgentOptions, fix: bool) -> AuditReport:
    """Compare everything placed from *directory*, or by an agent, with what was intended; with *fix* put it back."""
    agent = asking.find_agent(where, otherwise="say where it is with --agent or ALIGNUP_AGENT")
    first = _looked(directory, agent)
    if not fix or not first.drifts:
        return first.told()
    troubles = (*_restored(first.runs, first.strayed, directory), *housing.restore_containers(first.look))
    second = _looked(directory, agent)
    left = set(map(housing.drift_key, second.drifts))
    fixed = tuple(one for one in first.drifts if housing.drift_key(one) not in left)
    return second.told(fixed=fixed, troubles=troubles)


@dataclass(frozen=True, slots=True)
class _Seen:
    """Everything, looked at once."""

    runs: tuple[RunProcesses, ...]
    strayed: tuple[Drift, ...]  #: of runs
    look: ContainerAudit

    @property
    def drifts(self) -> tuple[Drift, ...]:
        return (*self.strayed, *self.look.drifts)

    def told(self, *, fixed: tuple[Drift, ...] = (), troubles: tuple[str, ...] = ()) -> AuditReport:
        return AuditReport(
            self.runs,
            self.drifts,
            fixed,
            (*troubles, *self.look.notes),
            containers=self.look.containers,
            runtime=self.look.runtime,
        )


def _looked(directory: Path, agent: RunClient | None) -> _Seen:
    going = registry.active_runs(directory)
    return _Seen(going, _drifts(going, directory, agent), housing.audit_containers(agent))


def _restored(going: Sequence[RunProcesses], drifts: Sequence[Drift], directory: Path) -> tuple[str, ...]:
    """Put runs that have drifted back; why not, a sentence each."""
    astray = {one.uid for one in drifts}
    if not astray:
        return ()
    with registry.RunRegistry(directory).locked():
        return tuple(trouble for run in going if run.intent.uid in astray for trouble in audit.restore_run(run))


def _drifts(going: Sequence[RunProcesses], directory: Path, agent: RunClient | None) -> tuple[Drift, ...]:
    own = [run for run in going if not run.intent.agent]
    others = [run for run in going if run.intent.agent]
    found = (*audit.audit_runs(own, devices=_devices(own)), *_by_ledger([run.intent for run in own], directory))
    return (*found, *audit.audit_runs(others), *_by_agent([run.intent for run in others], agent))


def _by_ledger(intents: Sequence[RunRecord], directory: Path) -> Iterator[Drift]:
    """Runs of which the user's own ledger says something else."""
    if not any(one.exclusive for one in intents):
        return
    from alignup.state.checkpoint import CheckpointStore  # noqa: PLC0415 - only where there is something to compare

    with registry.RunRegistry(directory).locked():
        loaded = CheckpointStore(directory).load()
    pods: Sequence[Mapping[str, Any]] = loaded.document["pods"] if loaded else ()
    held = {one["pod"]["uid"]: one.get("cpus", {}).get("containers", {}).get(CONTAINER, "") for one in pods}
    for intent in intents:
        if intent.exclusive:
            yield from _compared(intent, held.get(intent.uid), who="the ledger")


def _by_agent(intents: Sequence[RunRecord], agent: RunClient | None) -> Iterator[Drift]:
    """Runs of which the agent that decided says something else."""
    for intent in intents:
        if agent is None or agent.address != intent.agent:
            yield _decided(intent, who=f"the agent at {intent.agent}", actual="nobody answers there")
            continue
        pod = agent.pod(intent.uid)
        if pod is None or not pod["placements"]:
            yield from _compared(intent, None, who="the agent")
        elif intent.exclusive:
            yield from _compared(intent, pod["placements"][0]["given"].get("cpu", {}).get("cpu"), who="the agent")


def _compared(intent: RunRecord, held: str | None, *, who: str) -> Iterator[Drift]:
    if held is None:
        yield _decided(intent, who=who, actual="it knows nothing of this run")
    elif bits.parse(held) != intent.cpus:
        yield _decided(intent, who=who, actual=f"CPUs {held}")


def _decided(intent: RunRecord, *, who: str, actual: str) -> Drift:
    intended = f"CPUs {bits.show(intent.cpus)}"
    return Drift(uid=intent.uid, name=intent.name, kind=DriftKind.DECISION, where=who, intended=intended, actual=actual)


def _devices(going: Sequence[RunProcesses]) -> DeviceTopology | None:
    """The devices that discovery tells of now, and of others what was said; ``None`` where nobody has one of those."""
    if not any(GPU in run.intent.devices for run in going):
        return None
    from alignup.discover import discover  # noqa: PLC0415 - only where there is something to compare

    found = {(one.resource, one.id): one.nodes for one in discover().devices}
    for run in going:
        for resource, ids in run.intent.devices.items():
            if resource != GPU:
                found |= {(resource, id_): nodes for id_, nodes in ids.items()}
    return found
