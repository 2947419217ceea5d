"""Whatever one pod or gang raises, all others go on: an exception at every method of the scheduling state, in turn."""

import inspect
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from importlib import import_module
from typing import Any

import pytest

from alignup.align.workload import Pod
from alignup.align.workload.pod import PodClaim
from alignup.placement import cluster, scheduling
from alignup.placement.host_report import HostReport
from alignup.placement.scheduling.facts import GroupKey
from alignup.placement.steered import with_markers
from tests.effort import SEED, did, rounds
from tests.placement.scheduling.leftovers import leftovers
from tests.placement.scheduling.machine import SCHEDULER
from tests.placement.scheduling.model_api import GATE, ModelPod
from tests.placement.scheduling.model_shell import InjectedError, ModelFacts
from tests.placement.scheduling.test_model import Model
from tests.strategies_pods import guaranteed

BAD, GOOD = "bad", "good"  #: namespaces
SECONDS = 60.0  #: after which all good pods have started
#: What is not a decision: the guards themselves, and what they need to go on.
GUARDS = frozenset(
    ("handle", "_run", "_time_passed", "_isolated", "_all_or_none", "_go_on", "_fail", "give_up", "_leave", "_answer")
)
MODULES = [import_module(f"{scheduling.__name__}.{each.name}") for each in pkgutil.iter_modules(scheduling.__path__)]
NO_DECISIONS = frozenset(("events", "instructions", "facts", "options", "snapshot", "turn", "reasons", "failed_events"))


def decision_points() -> Iterator[tuple[type, str]]:
    """All methods of the parts of the scheduling state, and those of the facts."""
    modules = [each for each in MODULES if each.__name__.rpartition(".")[2] not in NO_DECISIONS]
    for module in (*modules, cluster):
        for _, part in inspect.getmembers(module, inspect.isclass):
            if part.__module__ == module.__name__ and not is_dataclass(part):
                yield from ((part, name) for name in vars(part) if is_point(part, name))
    yield from (
        (ModelFacts, name)
        for name in dir(ModelFacts)
        if is_point(ModelFacts, name) and name not in {"of", "see", "forget"}
    )


def is_point(part: type, name: str) -> bool:
    function = inspect.getattr_static(part, name)
    return inspect.isfunction(function) and not name.startswith("__") and name not in GUARDS


def concerns(value: Any, depth: int = 3) -> bool:
    """Whether something is about a bad pod, and about no good one."""
    if isinstance(value, HostReport):
        return False  # of a node with many pods
    if isinstance(value, str):
        return BAD in value
    if isinstance(value, Pod):
        return value.namespace == BAD
    if depth == 0:
        return False
    if isinstance(value, dict):
        return concerns(tuple(value), depth) or concerns(tuple(value.values()), depth)
    if isinstance(value, tuple | list | set | frozenset):
        return any(concerns(each, depth - 1) for each in value)
    if is_dataclass(value):
        return any(concerns(getattr(value, each.name), depth - 1) for each in fields(value))
    return False


class IsolationModel(Model):
    """A few pods of each kind, good and bad ones, without other faults."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.faulty = self.arriving = False
        self.frozen = True
        self.made = 0
        for number in range(2):
            for namespace in (BAD, GOOD):
                self.come(number, namespace)

    def come(self, number: int, namespace: str) -> None:
        markers = PodClaim("device", claim="claim")
        later = 2.0 * number
        changes: tuple[dict[str, Any], ...] = ({}, {"gates": (), "asks": True})
        for change in changes:
            self.create(later, namespace, **change)
        if number:
            return
        self.create(later, namespace, steered=True, gates=(), asks=True)
        self.create(later, namespace, claims=(markers,))
        for source, change in zip(("gated", "asked"), changes, strict=True):
            key = GroupKey(namespace, f"uid-group-{source}", "test")
            self.api.minimums[key] = 2
            for _ in range(2):
                self.create(later, namespace, group=key, **change)

    def create(self, later: float, namespace: str, *, steered: bool = False, claims: Any = (), **change: Any) -> None:
        self.made += 1
        name = f"{namespace}-{self.made}"
        made = Pod(
            name=name,
            uid=f"uid-{name}",
            namespace=namespace,
            containers=(guaranteed("app", {"cpu": "1", "memory": "1Gi"}),),
            claims=claims,
        )
        pod = (with_markers(made) or made) if steered else made
        created = ModelPod(pod, lifetime=1e6, created=self.world.now + later, gates=(GATE,), scheduler=SCHEDULER)
        self.world.after(later, lambda: self.api.create(replace(created, **change)))

    def check_exists(self, *_: object) -> None:
        """A pod whose end cannot be handled is tried again although it is gone."""

    def wait_until(self, condition: Callable[[], object]) -> None:
        end = self.world.now + SECONDS
        while not condition():
            assert self.world.now < end
            self.pass_time(2.0)

    def assumed(self) -> list[str]:
        """The pods that something counts on."""
        state, records = self.shell.state, map(self.shell.cluster.record, self.shell.cluster.hosts)
        unobserved = [each.uid for record in records if record for each in record.bindings if not each.observed]
        releases = [each.uid for each in state.gate.releases] if state.gate else []
        return [*state.assumptions.nodes, *unobserved, *releases, *self.shell.asking]

    def unbound(self, namespace: str) -> list[str]:
        pods = [each for each in self.api.pods.values() if each.pod.namespace == namespace]
        return [each.uid for each in pods if not each.host]


def inject(monkeypatch: pytest.MonkeyPatch, part: type, name: str, *, times: int) -> list[str]:
    """Let a method raise the first *times* that it is called about a bad pod; return what it was called with then."""
    method = getattr(part, name)
    raised: list[str] = []

    def raising(self: object, *arguments: Any, **named: Any) -> Any:
        if len(raised) < times and (concerns(arguments) or concerns(named)):
            raised.append(name)
            raise InjectedError(f"{part.__name__}.{name}")
        return method(self, *arguments, **named)

    monkeypatch.setattr(part, name, raising)
    return raised


POINTS = sorted(decision_points(), key=lambda point: (point[0].__name__, point[1]))


def run(monkeypatch: pytest.MonkeyPatch, part: type, name: str, times: int) -> int:
    raised = inject(monkeypatch, part, name, times=times)
    model = IsolationModel(SEED)
    model.wait_until(lambda: not model.unbound(GOOD))
    if times == 1:
        model.wait_until(lambda: not model.unbound(BAD))
    else:
        model.pass_time(5.0)
    model.frozen = False
    for uid in list(model.api.pods):
        model.api.delete(uid)
    model.wait_until(lambda: not model.api.pods)
    monkeypatch.undo()
    model.wait_until(lambda: not model.assumed())
    for node in list(model.api.nodes):
        model.api.remove_node(node)
    model.wait_until(lambda: not leftovers(model.shell.state, ["uid-"]))
    return len(raised)


@pytest.mark.soak
@pytest.mark.parametrize("times", [1, 1_000_000], ids=["once", "always"])
@pytest.mark.parametrize("number", range(rounds(20, soak=len(POINTS))))
def test_what_one_pod_raises_stops_no_other(monkeypatch, number, times):
    """At some of the methods in ``make test``, at all of them in ``make soak``."""
    part, name = POINTS[number * len(POINTS) // rounds(20, soak=len(POINTS))]
    did("methods that raise", run(monkeypatch, part, name, times) > 0)
