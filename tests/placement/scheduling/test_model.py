"""A random cluster around a scheduling state: what holds at every step, and at the end, whatever goes wrong.

A few thousand events in ``make test``, many more in ``make soak``. A failure names the seed and the last events.
"""

from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, permutations, product
from pathlib import Path
from traceback import format_exception
from typing import Any

import pytest

from alignup.align import bits
from alignup.align.host import Host
from alignup.align.settings import Policy, Scope
from alignup.align.workload import Pod
from alignup.align.workload.names import NUMA_ANNOTATION, POLICY_ANNOTATION, SCOPE_ANNOTATION
from alignup.placement.host_report import PodStage
from alignup.placement.pod_demands import find_refusal
from alignup.placement.pod_shape import needs_alignment
from alignup.placement.scheduling import instructions, tentative_gangs
from alignup.placement.scheduling.facts import GroupKey, WaitingOrder, WaitState
from alignup.placement.scheduling.instructions import Instruction, PredictionOutcome
from alignup.placement.scheduling.kept_nodes import MAX_HOLDERS
from alignup.placement.scheduling.releases import ReleaseOutcome, ReleasePhase
from alignup.placement.steered import decide_steered
from tests.effort import SEED, did, rounds
from tests.placement.model_api import World
from tests.placement.scheduling.leftovers import leftovers
from tests.placement.scheduling.machine import SCHEDULER
from tests.placement.scheduling.model_api import DELAYS, GATE, OTHER_GATE, ModelApi, ModelPod, PodMaker, kubelets
from tests.placement.scheduling.model_shell import OPTIONS, InjectedError, Shell, describe

NODES = 5
WAITING = 14  #: pods and gangs that wait at a time
QUIET_SECONDS = 150.0  #: after which everything is decided: retries, time limits, kept nodes
SETTLE_SECONDS = max(max(delays) for delays in DELAYS)  #: in which a leader sees the last writes of the one before
EMPTY_SECONDS = 100.0  #: after which nothing is left


@dataclass
class Promise:
    """A node that is kept."""

    order: WaitingOrder
    uids: frozenset[str]  #: of the holder
    pods: tuple[Pod, ...]
    before: set[str]  #: pods that may delay the holder: they were there, or come before it


@dataclass
class Counts:
    events: int = 0
    released: int = 0
    bound: int = 0
    kept: int = 0
    restarts: int = 0
    leaders: int = 0
    rejected: int = 0
    bound_late: int = 0
    gangs: int = 0
    demands: int = 0
    steered: int = 0
    deviations: int = 0


class Model:
    nodes = NODES

    def __init__(self, seed: int, *, record: Path | None = None) -> None:
        self.seed, self.world, self.record = seed, World(seed), record
        self.random = self.world.random
        self.trouble = self.random.choice((0.3, 1.0, 5.0))  #: how often others interfere
        self.faulty, self.frozen, self.arriving = True, False, True
        self.api = ModelApi(self.world, self.receive)
        self.kubelets = kubelets(self.api, self.nodes, lambda: self.frozen)
        self.api.on_rejection = self.rejected
        self.api.on_binding = self.bound
        self.pods = PodMaker(self.world, self.kubelets)
        self.counts = Counts()
        self.promises: dict[str, Promise] = {}
        self.given_up: set[str] = set()  #: uids of pods that nothing counts on any more
        self.planned: set[str] = set()
        self.completing: set[str] = set()  #: pods of gangs that have started, which come before all others
        self.targets: dict[str, int] = {}  #: uid → the NUMA nodes that a pod was steered to, or names
        self.started: dict[GroupKey, set[str]] = {}  #: pods of gangs that were released or bound
        self.causes = Counter[str]()  #: of deviations
        self.shell = self.make_shell()
        self.start(0.0)
        self.world.after(0.1, self.tick)
        self.world.after(0.1, self.schedule)

    def make_shell(self) -> Shell:
        return Shell(self.api, self, faults=lambda: self.faulty, record=self.record)

    def receive(self, *event: Any) -> None:
        self.shell.receive(*event)

    def start(self, seconds: float) -> None:
        shell = self.shell
        self.world.after(seconds, shell.lead)
        self.world.after(seconds, shell.tick)

    # What happens

    def run(self, steps: int) -> None:
        end = self.counts.events + steps
        while self.counts.events < end:
            self.world.step()

    def pass_time(self, seconds: float) -> None:
        end = self.world.now + seconds
        while self.world.now < end:
            self.world.step()

    def tick(self) -> None:
        """Pods arrive, change, and are deleted; others interfere."""
        self.world.after(0.3, self.tick)
        unbound = [each for each in self.api.pods.values() if not each.host]
        if self.arriving and len(unbound) < WAITING:
            for _ in range(self.random.randint(0, 3)):
                self.arrive()
        for each in unbound:
            if OTHER_GATE in each.gates and (self.random.random() < 0.05 or not self.faulty):
                self.api.change(each.uid, gates=(GATE,))
        if self.faulty:
            self.interfere(unbound)

    def arrive(self) -> None:
        if self.random.random() > 0.15:
            self.api.create(self.pods.alone())
            return
        key, minimum, members = self.pods.gang()
        self.api.minimums[key] = minimum
        for member in members:
            late = self.random.choice((0.0, 0.0, 3.0))
            self.world.after(late, partial(self.api.create, member))

    def interfere(self, unbound: list[ModelPod]) -> None:
        random, name = self.random, self.random.choice(list(self.kubelets))

        def happens(chance: float) -> bool:
            return random.random() < chance * self.trouble

        if unbound and happens(0.05):
            self.api.change(random.choice(unbound).uid)  # a label
        if unbound and happens(0.05):
            self.api.delete(random.choice(unbound).uid)
        if happens(0.05) and (bound := [each for each in self.api.pods.values() if each.host]):
            self.api.delete(random.choice(bound).uid)
        if happens(0.01) and name in self.api.nodes:
            allocatable = self.api.nodes[name]
            self.api.remove_node(name)
            self.world.after(random.uniform(0.5, 20), lambda: self.api.add_node(name, allocatable))
            self.world.after(21, self.kubelets[name].changed)
        if happens(0.01):
            self.shell.drop_host(name)
            self.world.after(random.uniform(0.1, 10), self.kubelets[name].changed)
        if happens(0.01):
            self.api.close()
            self.shell.list_all()
        if happens(0.01):
            self.restart()
        if happens(0.01) and self.shell.leading:
            self.shell.resign()
            self.counts.leaders += 1
            self.forget_promises()
            self.world.after(random.uniform(SETTLE_SECONDS, 5), self.shell.lead)

    def restart(self) -> None:
        self.shell.close()
        self.forget_promises()
        self.api.close()
        self.shell = self.make_shell()
        self.start(self.random.uniform(0.1, 5))
        self.counts.restarts += 1

    def forget_promises(self) -> None:
        self.promises.clear()
        self.planned.clear()

    def schedule(self) -> None:
        """A turn of the scheduler."""
        self.world.after(0.3, self.schedule)
        waiting = [
            each
            for each in self.api.pods.values()
            if not each.host and not each.gates and each.stage is PodStage.RUNNING and each.scheduler == SCHEDULER
        ]
        self.random.shuffle(waiting)
        for each in waiting:
            if (each.ignored or self.random.random() < 0.5) and self.faulty:
                continue
            if each.asks:
                self.shell.schedule_pod(each)
            elif each.released_to:
                self.bind_released(each)

    def bind_released(self, each: ModelPod) -> None:
        if each.at_once and any(other.gates for other in self.api.pods.values() if other.group == each.group):
            return
        fitting = [node for node in each.released_to if self.api.has_room(node, each.pod)]
        if fitting and not (self.faulty and self.random.random() < 0.05):
            self.api.bind(each.uid, self.random.choice(fitting))
        elif not each.unschedulable:
            self.api.change(each.uid, unschedulable=True)

    def bound(self, pod_object: ModelPod) -> None:
        self.counts.bound += 1
        self.excuse(pod_object.host)

    def excuse(self, node: str) -> None:
        """A pod that was given up is bound late: nothing can be promised to those that count on its node meanwhile."""
        bound = [each for each in self.api.pods.values() if each.host == node]
        if any(each.uid in self.given_up and each.uid not in self.shell.facts.bound for each in bound):
            self.given_up.update(each.uid for each in bound if each.uid not in self.kubelets[node].seen)
            self.given_up.update(pod.uid for pod in self.shell.state.assumptions.on(node))

    # What holds

    def fail(self, problem: str) -> None:
        log = "\n".join(f"{now:9.3f} {describe(each)}" for now, each in self.shell.log)
        raise AssertionError(f"seed {self.seed}, {self.world.now:.3f} s: {problem}\nthe last events:\n{log}")

    def rejected(self, pod_object: ModelPod, reason: str) -> None:
        self.counts.rejected += 1
        if pod_object.uid not in self.given_up:
            self.fail(f"{pod_object.host} rejected {pod_object.uid}: {reason}")

    def before(self, shell: Shell, _event: str) -> None:
        self.counts.events += 1

    def after(self, shell: Shell, done: list[Instruction]) -> None:
        self.check_gangs(shell)
        for each in done:
            self.check_instruction(shell, each)
            self.check_exists(shell, each)
        if shell.state.gate is not None:
            writing = shell.state.gate.releases.writing
            if not 0 <= writing <= OPTIONS.parallel:
                self.fail(f"{writing} releases are written at a time")
        self.check_deviations(done)
        self.check_counted(shell)
        for node in {name for each in done if isinstance(each, instructions.ChangeHosts) for name in each.hosts}:
            self.check_node(shell, node)

    def check_instruction(self, shell: Shell, each: Instruction) -> None:
        match each:
            case instructions.KeepNode():
                self.keep(shell, each)
            case instructions.GiveNodeBack(node):
                del self.promises[node]
            case instructions.WriteRelease(pod):
                self.counts.released += 1
                self.check_release(shell, pod)
                self.check_orders(shell, each)
                self.check_demand(shell, pod, each.nodes)
            case instructions.WriteBinding(_, pod):
                self.check_binding(shell, pod)
                self.check_demand(shell, pod, (each.node,))
            case instructions.Report("step failed", details=details):
                if ExceptionGroup("all", [details["error"]]).split(InjectedError)[1]:
                    self.fail(f"{details}: {''.join(format_exception(details['error']))}")
            case instructions.Report("release given up", uid=uid):
                self.given_up.add(uid)
            case instructions.Report("release ended", details={"outcome": ReleaseOutcome.BOUND_LATE}):
                self.counts.bound_late += 1
            case instructions.Report("gang released"):
                self.counts.gangs += 1

    def expect(self, uid: str, details: dict[str, Any]) -> None:
        """Note the NUMA node that a pod should get."""
        self.targets.pop(uid, None)
        named = self.api.pods[uid].pod.annotations.get(NUMA_ANNOTATION) if uid in self.api.pods else None
        if text := details.get("numa_node", named):
            self.targets[uid] = bits.parse(text)

    def check_deviations(self, done: list[Instruction]) -> None:
        """Pods on other NUMA nodes than they should be are counted, and no others."""
        for each in done:
            if isinstance(each, instructions.Report) and each.event == "steering":
                self.expect(each.uid, each.details)
        placed = (PredictionOutcome.AS_PREDICTED, PredictionOutcome.PLACED_ELSEWHERE)
        confirmed = {
            each.uid: each.node
            for each in done
            if isinstance(each, instructions.CountPrediction) and each.outcome in placed and each.uid in self.targets
        }
        self.counts.steered += len(confirmed)
        for uid, node in confirmed.items():
            numa_nodes, target = self.kubelets[node].used_numa_nodes[uid], self.targets[uid]
            deviates = numa_nodes & target != numa_nodes
            reports = [
                each.details
                for each in done
                if isinstance(each, instructions.Report) and (each.event, each.uid) == ("steering deviation", uid)
            ]
            if len(reports) != deviates:
                self.fail(f"{uid} is on NUMA nodes {numa_nodes:b} and should be on {target:b}: {reports}")
            for details in reports:
                self.counts.deviations += 1
                self.causes[details["cause"]] += 1

    def check_counted(self, shell: Shell) -> None:
        """Nodes count on all pods that are released to them, or about to be bound, if their kubelets admit them."""
        promised = dict(shell.state.assumptions.nodes)
        for release in shell.state.gate.releases if shell.state.gate else ():
            promised[release.uid] = release.nodes
        for uid, nodes in promised.items():
            known = self.api.pods.get(uid)
            if known is None or known.host:  # its kubelet may have ended it
                continue
            for node in nodes:
                record = shell.cluster.record(node)
                if record is not None and not record.holds(uid) and shell.cluster.verdict(known.pod, node).admits:
                    self.fail(f"{node} does not count on {uid}")

    def check_exists(self, shell: Shell, each: Instruction) -> None:
        match each:
            case instructions.WriteRelease(pod):
                uid = pod.uid
            case instructions.ReadPod(uid) | instructions.EvictPod(uid) | instructions.WriteEvent(uid):
                pass
            case instructions.DecideLargePod(uid) if not uid.startswith("gang"):
                pass
            case _:
                return
        if uid in shell.facts.told and uid not in shell.facts.view and uid not in self.api.pods:
            self.fail(f"instruction for a pod that is gone: {each}")

    # Gangs

    def check_release(self, shell: Shell, pod: Pod) -> None:
        """So many pods of a gang were released, as far as they still exist, that it can start."""
        group = shell.facts.view[pod.uid].group if pod.uid in shell.facts.view else None
        if group is not None and len(self.started.get(group, ())) < self.api.minimums[group]:
            self.fail(f"{self.started.get(group)} of {self.api.minimums[group]} pods of gang {group} are released")

    def check_binding(self, shell: Shell, pod: Pod) -> None:
        """When the first pod of a gang is bound, nodes count on so many others that it can start.

        A pod counts whose deletion was not told yet, or that only its scheduler has told of.
        """
        known = self.api.pods.get(pod.uid)
        if known is None or known.group is None:
            return
        unseen = [each for uid, each in shell.asked_about.items() if uid not in shell.facts.told]
        pods = (*shell.facts.view.values(), *self.api.pods.values(), *unseen)
        members = [each for each in pods if each.group == known.group]
        if any(needs_alignment(each.pod) for each in members):
            placed = [each.uid for each in members if each.host or each.uid in shell.state.assumptions]
            free = [each.uid for each in members if not needs_alignment(each.pod)]
            enough = len({*placed, *free}) >= self.api.minimums[known.group]
            if not enough and not self.started.get(known.group) and needs_alignment(pod):
                self.fail(f"{placed} of {self.api.minimums[known.group]} pods of {known.group} are bound or placed")
            if enough or needs_alignment(pod):
                self.started.setdefault(known.group, set()).add(pod.uid)

    def check_demand(self, shell: Shell, pod: Pod, nodes: Sequence[str]) -> None:
        """A pod goes where its NUMA nodes are such as a kubelet with the policy that it demands chooses."""
        policy, own_scope = pod.annotations.get(POLICY_ANNOTATION), pod.annotations.get(SCOPE_ANNOTATION)
        if policy == "unknown":
            self.fail(f"{pod.uid} goes to {nodes}, but its policy is unknown")
        for record in filter(None, map(shell.cluster.record, nodes)):
            binding, settings = record.binding(pod.uid), record.model.settings
            if binding is None or binding.observed or policy not in (Policy.RESTRICTED, Policy.SINGLE_NUMA_NODE):
                continue
            scope = Scope(own_scope or settings.topology.scope)
            topology = replace(settings.topology, policy=Policy(policy), scope=scope)
            self.counts.demands += 1
            for ledger, way in product(record.before(pod.uid).states().ledgers, binding.ways):
                host = record.model.at(ledger)
                placed = decide_steered(host, pod, way)
                strict = decide_steered(Host(host.machine, replace(settings, topology=topology), ledger=ledger), pod, 0)
                units = [placed.placements] if scope is Scope.POD else [(each,) for each in placed.placements]
                for unit, step in zip(units, strict.steps, strict=False):  # what is rejected has fewer steps
                    sites = {site for each in unit for site in each.sites(placed.after or ledger)}
                    if sites and (not step.accepted or len(sites) != (step.hint.nodes or 0).bit_count()):
                        self.fail(f"{pod.uid} demands {policy}, and is on {sites} of {record.name}")

    def check_gangs(self, shell: Shell) -> None:
        """Releases of a gang are planned together."""
        releases = {each.uid: each for each in shell.state.gate.releases} if shell.state.gate else {}
        new = {uid: releases[uid].facts for uid in releases.keys() - self.planned}
        before, self.planned = self.planned, set(releases)
        for uid, facts in new.items():
            if facts.group is None:
                continue
            gang = shell.facts.gang(facts.group)
            here = {*gang.bound, *(uid for uid in (*gang.waiting, *gang.gated) if uid in releases)}
            self.started.setdefault(facts.group, set()).update(here, (uid,))
            if gang.bound or before.intersection(gang.waiting):
                self.completing.add(uid)
            if len(here) < gang.minimum and not facts.released_to:
                self.fail(f"{here} of {gang.minimum} pods of gang {facts.group} are released")

    # Nodes

    def check_orders(self, shell: Shell, release: instructions.WriteRelease) -> None:
        """Pods that are released to one node at the same time are admitted in whatever order they are bound."""
        releases = shell.state.gate.releases if shell.state.gate else ()
        written = [each.facts.pod for each in releases if each.phase is not ReleasePhase.PLANNED]
        for node in release.nodes if len(release.nodes) == 1 else ():
            self.excuse(node)
            here = [pod for pod in shell.state.assumptions.on(node) if pod in written]
            for order in permutations(here) if len(here) < 4 else ():
                _, rejected = self.future(shell, node, order)
                if set(rejected) - self.given_up:
                    self.fail(f"{node} rejects {rejected} if pods are bound in the order {[pod.uid for pod in order]}")

    def future(self, shell: Shell, node: str, assumed: Sequence[Pod] | None = None) -> tuple[Host, list[str]]:
        """The host when its kubelet has admitted all bound and *assumed* pods; and those that it rejects."""
        kubelet = self.kubelets[node]
        host = copy(kubelet.host)
        for uid in kubelet.ended:
            host.release(uid)
        coming = [each.pod for each in self.api.pods.values() if each.host == node and each.stage is PodStage.RUNNING]
        coming.sort(key=lambda pod: self.order_of_binding(pod.uid))
        coming += shell.state.assumptions.on(node) if assumed is None else assumed
        rejected, record = [], shell.cluster.record(node)
        for pod in {pod.uid: pod for pod in coming}.values():
            if pod.uid not in host.ledger.pods and pod.uid not in kubelet.seen:
                binding = record.binding(pod.uid) if record else None
                decision = decide_steered(host, pod, binding.ways[0] if binding else 0)
                if decision.admitted:
                    host.apply(decision)
                else:
                    rejected.append(pod.uid)
        return host, rejected

    def order_of_binding(self, uid: str) -> int:
        return self.api.bindings[uid]

    def check_node(self, shell: Shell, node: str) -> None:
        self.excuse(node)
        host, rejected = self.future(shell, node)
        if set(rejected) - self.given_up and shell.cluster.record(node) is not None:
            self.fail(f"{node} is promised twice: it will reject {rejected}")
        promise = self.promises.get(node)
        if promise is None:
            return
        promise.before |= host.ledger.pods.keys() & self.given_up  # they are bound late
        bound = [each for each in self.api.pods.values() if each.host == node]
        promise.before |= {each.uid for each in bound if each.order <= promise.order}  # some never assumed
        for pod in shell.state.assumptions.on(node):
            each = self.api.pods.get(pod.uid)
            first = each is None or each.order <= promise.order or bool(each.released_to)
            if first or pod.uid in self.given_up | self.completing:
                promise.before.add(pod.uid)
        placed = {*shell.state.assumptions.nodes, *(each.uid for each in bound)}
        if promise.uids & placed or self.fits(host, promise):  # a pod of the gang is there: the node is given back
            return
        record = shell.cluster.record(node)
        ledgers = record.states().ledgers if record else ()
        hosts = [Host(record.report.machine, record.report.settings, ledger=ledger) for ledger in ledgers if record]
        if not hosts or not all(self.fits(known, promise) for known in hosts):
            self.fail(f"{node} is kept for {promise.uids}, and other pods there delay it: {promise}")
        promise.before |= host.ledger.pods.keys()  # pods have ended there that the process counts on

    def keep(self, shell: Shell, kept: instructions.KeepNode) -> None:
        self.counts.kept += 1
        kept_nodes = shell.state.kept_nodes._kept  # noqa: SLF001 - the holder has no other place
        holder = kept_nodes[kept.node].holder
        host, _ = self.future(shell, kept.node)
        self.promises[kept.node] = Promise(holder.order, holder.uids, kept.pods, set(host.ledger.pods))
        holders = {id(each.holder): each.holder for each in kept_nodes.values()}.values()
        gangs = [each for each in holders if each.group]
        if len(holders) > MAX_HOLDERS or len(gangs) > 1:
            self.fail(f"nodes are kept for {[each.name for each in holders]}")

    def fits(self, host: Host, promise: Promise) -> bool:
        later = copy(host)
        for uid in promise.before:
            later.release(uid)
        for pod in promise.pods:
            decision = later.decide_without_plugins(pod)
            if not decision.admitted:
                return False
            later.apply(decision)
        return True

    # The end

    def settle(self) -> None:
        """No more faults, and no pod comes or ends."""
        self.faulty = self.arriving = False
        self.frozen = True
        self.pass_time(QUIET_SECONDS)
        for each in self.api.pods.values():
            waits = (each.state is WaitState.GATED or each.asks) and each.scheduler == SCHEDULER and not each.host
            if waits and each.group is None and not each.ignored and (fitting := self.fitting(each)):
                self.fail(f"{each.uid} waits although it fits on {fitting}")
        for group in {each.group for each in self.api.pods.values() if each.group}:
            self.check_gang_waits(group)

    def fitting(self, each: ModelPod) -> set[str]:
        """The nodes that a pod could be released to."""
        keeps_out = self.shell.state.kept_nodes.keeps_out
        return {
            node
            for node in self.api.nodes.keys() - each.forbidden
            if not keeps_out(node, each.pod, each.order)
            and self.api.has_room(node, each.pod)
            and not (each.pod.uses_claims and node == "node-0")
            and self.kubelets[node].host.decide_without_plugins(each.pod).admitted
            and not find_refusal(self.kubelets[node].host, each.pod)
        }

    def check_gang_waits(self, group: GroupKey) -> None:
        """A gang does not wait if each of its pods could have a node of its own."""
        members = [each for each in self.api.pods.values() if each.group == group and each.stage is PodStage.RUNNING]
        waiting = [each for each in members if each.state is WaitState.GATED or (each.asks and not each.host)]
        bound = sum(bool(each.host) for each in members)
        needed = max(self.api.minimums[group] - bound, 1)
        for chosen in combinations(waiting, needed) if not any(each.ignored for each in members) else ():
            if any(len(set(nodes)) == needed for nodes in product(*map(self.fitting, chosen))):
                self.fail(f"gang {group} waits although {[each.uid for each in chosen]} fit")

    def empty(self) -> None:
        """All pods are deleted, and then all nodes."""
        self.frozen = False
        for uid in list(self.api.pods):
            if uid in self.api.pods:
                self.api.delete(uid)
        self.pass_time(EMPTY_SECONDS)
        assert not self.api.pods
        for name in list(self.api.nodes):
            self.api.remove_node(name)
        self.pass_time(10)
        if remains := leftovers(self.shell.state, ["uid-", "node-"]):
            self.fail("something is left: " + "; ".join(remains[:10]))


@pytest.mark.soak
@pytest.mark.parametrize("number", range(rounds(6, soak=200)))
def test_what_is_promised_holds_whatever_goes_wrong(number, monkeypatch):
    monkeypatch.setattr(tentative_gangs, "KEPT_SECONDS", 40.0)  # less than the time after which all is decided
    model = Model(SEED * 1000 + number)
    model.run(rounds(1500, soak=5000))
    model.settle()
    model.empty()
    for name, count in vars(model.counts).items():
        did(f"scheduling model: {name}", count)
    for cause, count in model.causes.items():
        did(f"scheduling model: {cause} deviations", count)
