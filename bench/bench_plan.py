"""Plans: the proof that two moves are not enough on a large node, and the first plan in fleets of nodes with 8 GPUs."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import combinations
from random import Random

from alignup.align.cpus.options import CpuSettings
from alignup.align.host import Host, Settings
from alignup.align.machine import Device
from alignup.align.memory.reserved_memory import ReservedMemory
from alignup.align.quantity import Quantity
from alignup.align.settings import Policy, TopologySettings
from alignup.machines.synthetic import parse
from alignup.placement.cluster import Cluster
from alignup.placement.host_report import HostReport
from alignup.placement.moves import MovePlan, MoveRules, PendingPod, RunningPod
from bench.bench_admit import GPU, pod
from bench.harness import Figure, cpu_time, peak_megabytes, run_in_fresh_process

GIB = 1 << 30
RESERVED = Quantity.parse("1Gi")
STATES = 400  #: different nodes of a fleet
BIG = pod("new", cpus=32, memory="128Gi", gpus=4)
FLEETS = ((500, 5.0), (5000, 30.0))  #: nodes, and the budget in seconds


def figures() -> Iterator[Figure]:
    seconds, plan = planned(*large_node())
    assert plan.at_least > 2, plan
    yield Figure("plan, 8 NUMA nodes with 60 pods, 2 moves are not enough", seconds, 1.0)
    for nodes, budget in FLEETS:
        for needed, title in ((1, "one move needed"), (2, "two moves needed"), (0, "moved pods need moves")):
            seconds, megabytes, moves = run_in_fresh_process(first_plan, nodes, needed)
            name = f"plan, {nodes} nodes with 8 GPUs, {title}"
            yield Figure(f"{name}, first plan ({moves:.0f} moves)", seconds, budget)
            yield Figure(f"{name}, memory", megabytes, 1500, unit="MB")


def first_plan(nodes: int, needed: int) -> tuple[float, float, float]:
    """Return the seconds to the first plan, the peak of memory, and the moves of the plan.

    So many moves are *needed*; 0: a pod that moves needs a move itself.
    """
    cluster, rules = fleet(nodes, needed) if needed else tight_fleet(nodes)
    seconds, plan = planned(cluster, replace(rules, first=True), PendingPod(BIG))
    assert len(plan.evictions) >= needed, plan.problem
    return seconds, peak_megabytes(), float(len(plan.evictions))


def planned(cluster: Cluster, rules: MoveRules, pending: PendingPod) -> tuple[float, MovePlan]:
    return cpu_time(partial(cluster.plan, [pending], rules))


def large_node() -> tuple[Cluster, MoveRules, PendingPod]:
    """Each NUMA node has two to four free CPUs; the new pod needs ten on one."""
    host, random = make_host("pack:2 numa:4 core:9 pu:2", memory=64), Random(1)
    while host.admit(pod(f"p{len(host.ledger.pods)}", cpus=2, memory=f"{random.randrange(1, 6)}Gi", gpus=0)).admitted:
        pass
    for more in (8, 3):
        by_node = {admitted.hints["app"].nodes: uid for uid, admitted in host.ledger.pods.items()}
        for uid in list(by_node.values())[:more]:
            host.release(uid)
    assert len(host.ledger.pods) == 60
    rules = rules_for({"node": host}, stay=True)
    pending = PendingPod(pod("new", cpus=10, memory="8Gi", gpus=0))
    return cluster_of({"node": host}), replace(rules, max_moves=3), pending


def fleet(nodes: int, needed: int = 1) -> tuple[Cluster, MoveRules]:
    """Nodes with 8 GPUs on two NUMA nodes, none of which has four free GPUs before so many pods have left."""
    recipes = fleet_recipes(needed)
    hosts = {f"node-{number}": follow(recipes[number % len(recipes)], f"{number}-") for number in range(nodes)}
    return cluster_of(hosts), rules_for(hosts)


def tight_fleet(nodes: int) -> tuple[Cluster, MoveRules]:
    """Nodes with one free GPU each: the pods with two that have to move fit nowhere."""
    recipes: tuple[Recipe, ...] = (((2, 1, 1, 2, 1, 1), (4,)), ((2, 2, 2, 1, 1), (4,)), ((2, 2, 2, 1, 1), (4,)))
    hosts = {f"node-{number}": follow(recipes[number % 3], f"{number}-") for number in range(nodes)}
    return cluster_of(hosts), rules_for(hosts)


Recipe = tuple[tuple[int, ...], tuple[int, ...]]  #: the GPUs of pods that come, and which of them end


@cache
def fleet_recipes(needed: int) -> list[Recipe]:
    random = Random(1)
    recipes: list[Recipe] = []
    while len(recipes) < STATES:
        sizes = tuple(random.choice((1, 1, 2)) for _ in range(8))
        recipe = sizes, tuple(random.sample(range(6), random.randrange(4)))
        if not admits_after(follow(recipe), needed - 1):
            recipes.append(recipe)
    return recipes


def admits_after(host: Host, ends: int) -> bool:
    """Return whether a host admits the large pod after the end of some pods."""
    for chosen in combinations(list(host.ledger.pods), ends):
        trial = Host(host.machine, host.settings, ledger=host.ledger)
        for uid in chosen:
            trial.release(uid)
        if trial.decide(BIG).admitted:
            return True
    return False


def follow(recipe: Recipe, prefix: str = "") -> Host:
    idle = idle_gpu_host()
    host = Host(idle.machine, idle.settings)
    for number, gpus in enumerate(recipe[0]):
        host.admit(pod(f"{prefix}p{number}", cpus=8 * gpus, memory=f"{32 * gpus}Gi", gpus=gpus))
    for number in recipe[1]:
        host.release(f"{prefix}p{number}")
    return host


@cache
def idle_gpu_host() -> Host:
    return make_host("pack:2 numa:1 core:32 pu:2", memory=512, gpus=4)


def make_host(shape: str, *, memory: int, gpus: int = 0) -> Host:
    machine = parse(shape, memory=memory * GIB)
    devices = tuple(
        Device(GPU, f"gpu-{node.id}-{number}", nodes=1 << node.id) for node in machine.nodes for number in range(gpus)
    )
    reservation = {"cpu": Quantity.parse("2"), "memory": RESERVED}
    settings = Settings(
        topology=TopologySettings(policy=Policy.SINGLE_NUMA_NODE),
        cpus=CpuSettings(policy="static", reservation=reservation["cpu"]),
        memory_policy="Static",
        reserved_memory=(ReservedMemory(0, {"memory": RESERVED}),),
        reservation=reservation,
    )
    return Host(replace(machine, devices=devices), settings)


def cluster_of(hosts: dict[str, Host]) -> Cluster:
    cluster = Cluster()
    for name, host in hosts.items():
        report = HostReport(host=name, machine=host.machine, settings=host.settings, ledger=host.ledger, sequence=1)
        cluster.confirm(report)
    return cluster


def rules_for(hosts: dict[str, Host], *, stay: bool = False) -> MoveRules:
    """Return rules under which all pods may move; with *stay*, end without a new place."""
    return MoveRules(
        pods={
            uid: RunningPod(pod=admitted.pod, host=name, moves=not stay, preemptible=stay)
            for name, host in hosts.items()
            for uid, admitted in host.ledger.pods.items()
        }
    )
