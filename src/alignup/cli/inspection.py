"""Looking at everything that was placed: what ``alignup audit`` finds, and puts back."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alignup.align import bits
from alignup.cli import asking, runs
from alignup.cli.asking import Agent
from alignup.cli.client import Where
from alignup.cli.wish import CONTAINER, GPU
from alignup.enforce import audit
from alignup.enforce.audit import Drift, Found, Kind, Living
from alignup.enforce.intent import Intent


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found."""

    runs: tuple[Living, ...]
    drifts: tuple[Drift, ...]  #: what is not as intended, after fixing if that was asked for
    fixed: tuple[Drift, ...] = ()  #: what was not, and is again
    troubles: tuple[str, ...] = ()  #: why something could not be fixed


def inspect(directory: Path, *, where: Where, fix: bool) -> Inspection:
    """Compare everything placed from *directory* with what was intended; with *fix* put it back."""
    going = runs.going_on(directory)
    drifts = _drifts(going, directory, where)
    if not fix or not drifts:
        return Inspection(going, drifts)
    astray = {one.uid for one in drifts}
    troubles: list[str] = []
    with runs.Runs(directory).locked():
        for run in going:
            if run.intent.uid in astray:
                troubles += audit.restore(run)
    going = runs.going_on(directory)
    left = _drifts(going, directory, where)
    again = {(one.uid, one.kind, one.where) for one in left}
    fixed = tuple(one for one in drifts if (one.uid, one.kind, one.where) not in again)
    return Inspection(going, left, fixed, tuple(troubles))


def _drifts(going: Sequence[Living], directory: Path, where: Where) -> tuple[Drift, ...]:
    own = [run for run in going if not run.intent.agent]
    others = [run for run in going if run.intent.agent]
    found = (*audit.audit(own, devices=_devices(own)), *_by_ledger([run.intent for run in own], directory))
    if not others:
        return found
    agent = asking.asked(where)
    return (*found, *audit.audit(others), *_by_agent([run.intent for run in others], agent))


def _by_ledger(intents: Sequence[Intent], directory: Path) -> Iterator[Drift]:
    """Runs of which the user's own ledger says something else."""
    if not any(one.exclusive for one in intents):
        return
    from alignup.state.store import Store  # noqa: PLC0415 - only where there is something to compare

    with runs.Runs(directory).locked():
        loaded = Store(directory).load()
    pods: Sequence[Mapping[str, Any]] = loaded.document["pods"] if loaded else ()
    held = {one["pod"]["uid"]: one.get("cpus", {}).get("containers", {}).get(CONTAINER, "") for one in pods}
    for intent in intents:
        if intent.exclusive:
            yield from _compared(intent, held.get(intent.uid), who="the ledger")


def _by_agent(intents: Sequence[Intent], agent: Agent | None) -> Iterator[Drift]:
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


def _compared(intent: Intent, held: str | None, *, who: str) -> Iterator[Drift]:
    if held is None:
        yield _decided(intent, who=who, actual="it knows nothing of this run")
    elif bits.parse(held) != intent.cpus:
        yield _decided(intent, who=who, actual=f"CPUs {held}")


def _decided(intent: Intent, *, who: str, actual: str) -> Drift:
    intended = f"CPUs {bits.show(intent.cpus)}"
    return Drift(uid=intent.uid, name=intent.name, kind=Kind.DECISION, where=who, intended=intended, actual=actual)


def _devices(going: Sequence[Living]) -> Found | None:
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
