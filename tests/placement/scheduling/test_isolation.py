"""Whatever one pod or gang raises, all others go on: an exception at every method of the scheduling state, in turn."""

import inspect
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any

import pytest

from alignup.align.errors import ParseError
from alignup.align.workload import Pod
from alignup.align.workload.pod import PodClaim
from alignup.placement import cluster, scheduling
from alignup.placement.host_report import HostReport
from alignup.placement.scheduling.facts import GroupKey
from alignup.placement.steered import with_markers
from tests.effort import SEED, SOAK, did
from tests.placement.scheduling.leftovers import leftovers
from tests.placement.scheduling.machine import SCHEDULER
from tests.placement.scheduling.model_api import GATE, ModelPod
from tests.placement.scheduling.model_shell import InjectedError, ModelFacts
from tests.placement.scheduling.test_model import Model
from tests.strategies_pods import guaranteed

BAD, GOOD, FILLER = "bad", "good", "filler"  #: namespaces
ALWAYS = 1_000_000  #: times


class InvalidError(InjectedError, ParseError):
    """What something that cannot be read raises; parts expect it where they read."""


ERRORS = (InjectedError, InvalidError)
SAMPLES = 20  #: of the methods, in ``make test``
RETRIES = 1_000.0  #: seconds in which everything that failed is tried again
SECONDS = 60.0  #: after which all good pods have started
KINDS: tuple[dict[str, Any], ...] = ({}, {"gates": (), "asks": True})  #: of pods, by what they wait for
#: What is not a decision: the guards themselves, and what they need to go on.
GUARDS = frozenset(
    (
        *("handle", "_run", "_time_passed", "_isolated", "_isolated_namespace", "_all_or_none", "_go_on", "_fail"),
        *("give_up", "_leave", "_answer", "_repeat", "_each"),
    )
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
    names = [name for name in dir(ModelFacts) if name not in {"of", "see", "forget"}]
    yield from ((ModelFacts, name) for name in names if is_point(ModelFacts, name))


def is_point(part: type, name: str) -> bool:
    function = inspect.getattr_static(part, name)
    return inspect.isfunction(function) and not name.startswith("__") and name not in GUARDS


def concerns(value: Any) -> bool:
    """Whether something is about a bad pod, and about no good one."""
    return set(namespaces(value)) == {BAD}


def namespaces(value: Any, depth: int = 4) -> Iterator[str]:
    """The namespaces of the pods that something is about."""
    if isinstance(value, str):
        yield from (namespace for namespace in (BAD, GOOD) if namespace in value)
    elif isinstance(value, Pod):
        yield value.namespace
    elif depth and isinstance(value, dict):
        for each in (*value, *value.values()):
            yield from namespaces(each, depth - 1)
    elif depth and isinstance(value, tuple | list | set | frozenset):
        for each in value:
            yield from namespaces(each, depth - 1)
    elif depth and is_dataclass(value) and not isinstance(value, HostReport):  # of a node with many pods
        for each in fields(value):
            yield from namespaces(getattr(value, each.name), depth - 1)


class IsolationModel(Model):
    """A few pods of each kind, good and bad ones, without other faults; others fill the nodes for large pods."""

    nodes = 7

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.faulty = self.arriving = False
        self.frozen = True
        self.made = 0
        for cpus in ("4", "3") * 3:
            self.create(0.0, FILLER, cpus)
        self.wait_until(lambda: self.api.pods and not self.unbound(FILLER))
        for number in range(2):
            for namespace in (BAD, GOOD):
                self.come(number, namespace)

    def come(self, number: int, namespace: str) -> None:
        markers = PodClaim("device", claim="claim")
        later = 2.0 * number
        for change in KINDS:
            self.create(later, namespace, **change)
        if number:
            return
        self.create(later, namespace, steered=True, gates=(), asks=True)
        self.create(later, namespace, claims=(markers,))
        for source, change in zip(("gated", "asked"), KINDS, strict=True):
            key = GroupKey(namespace, f"uid-group-{source}", "test")
            self.api.minimums[key] = 2
            for _ in range(2):
                self.create(later, namespace, group=key, **change)

    def make_room(self) -> None:
        """Large pods come, and wait until others end; meanwhile a node is kept for a good one."""
        for namespace in (BAD, GOOD):
            for change in KINDS:
                self.create(0.0, namespace, "3", **change)
        large = [f"{GOOD}-{self.made - number}" for number in range(len(KINDS))]
        kept_nodes = self.shell.state.kept_nodes
        self.wait_until(lambda: any(name in kept_nodes.describe(node) for node in kept_nodes.names for name in large))
        for uid in [uid for uid, each in self.api.pods.items() if each.pod.namespace == FILLER]:
            self.api.delete(uid)

    def create(
        self,
        later: float,
        namespace: str,
        cpus: str = "1",
        *,
        steered: bool = False,
        claims: Any = (),
        **change: Any,
    ) -> None:
        self.made += 1
        name = f"{namespace}-{self.made}"
        made = Pod(
            name=name,
            uid=f"uid-{name}",
            namespace=namespace,
            containers=(guaranteed("app", {"cpu": cpus, "memory": "1Gi"}),),
            claims=claims,
        )
        pod = (with_markers(made) or made) if steered else made
        created = ModelPod(pod, lifetime=1e6, created=self.world.now + later, gates=(GATE,), scheduler=SCHEDULER)
        self.world.after(later, lambda: self.api.create(replace(created, **change)))

    def check_exists(self, *_: object) -> None:
        """A pod whose end cannot be handled is tried again although it is gone."""

    def wait_until(self, condition: Callable[[], object], seconds: float = SECONDS) -> None:
        end = self.world.now + seconds
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


@dataclass
class Injection:
    """A method that raises the first *times* that it is called about a bad pod; without any, its calls are counted."""

    times: int
    calls: int = 0
    over: bool = False
    error: type[Exception] = InjectedError


def inject(
    monkeypatch: pytest.MonkeyPatch, part: type, name: str, *, times: int, error: type[Exception] = InjectedError
) -> Injection:
    method = getattr(part, name)
    injection = Injection(times, error=error)

    def raising(self: object, *arguments: Any, **named: Any) -> Any:
        again = injection.calls < max(times, 1) and not injection.over
        if again and concerns((arguments, named)):
            injection.calls += 1
            if times:
                raise injection.error(f"{part.__name__}.{name}")
        return method(self, *arguments, **named)

    monkeypatch.setattr(part, name, raising)
    return injection


POINTS = sorted(decision_points(), key=lambda point: (point[0].__name__, point[1]))


def run(
    monkeypatch: pytest.MonkeyPatch, part: type, name: str, times: int, error: type[Exception] = InjectedError
) -> int:
    injection = inject(monkeypatch, part, name, times=times, error=error)
    model = IsolationModel(SEED)
    model.wait_until(lambda: len(model.api.pods) == model.made)
    model.wait_until(lambda: not model.unbound(GOOD))
    model.make_room()
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
    injection.over = True  # the state may have kept the method
    model.wait_until(lambda: not model.assumed(), RETRIES)
    for node in list(model.api.nodes):
        model.api.remove_node(node)
    model.wait_until(lambda: not leftovers(model.shell.state, ["uid-"]), RETRIES)
    return injection.calls


@cache
def called_points() -> list[tuple[type, str]]:
    """Return the methods that are called about a bad pod when nothing fails."""
    with pytest.MonkeyPatch.context() as patches:
        injections = {point: inject(patches, *point, times=0) for point in POINTS}
        run(patches, *POINTS[0], times=0)
    return [point for point, injection in injections.items() if injection.calls]


@pytest.mark.soak
@pytest.mark.parametrize("times", [1, ALWAYS], ids=["once", "always"])
@pytest.mark.parametrize("number", range(SAMPLES))
def test_what_one_pod_raises_stops_no_other(monkeypatch, number, times):
    """At some of the methods in ``make test``, at all of them in ``make soak``."""
    points = called_points()
    sample = points[number * len(points) // SAMPLES : (number + 1) * len(points) // SAMPLES]
    for index, (part, name) in enumerate(sample if SOAK else sample[:1]):
        assert run(monkeypatch, part, name, times, ERRORS[(number + index + times) % 2])
        did("methods that raise")
