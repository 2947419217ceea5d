"""Cluster simulations with our strategy: a trace of the size of openb, a generated workload, memory, and processes.

With ``ALIGNUP_OPENB`` (a directory with ``openb_node_list_gpu_node.csv`` and ``openb_pod_list_default.csv``) the real
trace is simulated, otherwise one of the same size drawn from its published distributions: as many nodes of each shape,
and as many pods with each number of GPUs.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from time import perf_counter

from alignup.align.cpus.options import CpuSettings
from alignup.align.host import Settings
from alignup.align.machine import Machine
from alignup.align.quantity import Quantity
from alignup.align.settings import Policy, TopologySettings
from alignup.simulate import openb
from alignup.simulate.arrivals import PodSubmission
from alignup.simulate.cluster_files import WorkloadDescription
from alignup.simulate.cluster_hosts import HostGroup
from alignup.simulate.cluster_result import FleetResult
from alignup.simulate.cluster_simulation import ClusterSimulation
from alignup.simulate.executors import Engine, ProcessEngine, pack
from alignup.simulate.generate import Profile, generate_for_cluster
from alignup.simulate.sweeps import SweepTask, run_packed
from bench.bench_admit import host
from bench.harness import Figure, cpu_time, peak_megabytes, run_in_fresh_process

#: CPUs, GiB, GPUs → nodes; and GPUs → pods, as published.
NODES = {
    (96, 384, 8): 578,
    (104, 512, 2): 387,
    (16, 120, 2): 109,
    (64, 256, 2): 22,
    (128, 768, 8): 39,
    (32, 128, 4): 54,
    (8, 32, 1): 24,
}
PODS = {0: 1088, 1: 6989, 2: 16, 4: 15, 8: 44}
HOSTS, GENERATED = 1000, 10_000
PROCESSES = 2


def figures() -> Iterator[Figure]:
    yield from run_in_fresh_process(simulations)
    one_process, two_processes = (sweep(ProcessEngine(count)) for count in (1, PROCESSES))
    yield Figure(
        "two processes, part of the time of one",
        two_processes / one_process,
        1 / 1.7,
        f"{one_process / two_processes:.2f} times as fast",
    )


def simulations() -> list[Figure]:
    groups, pods, name = openb_workload()
    spent, result = simulate(groups, tuple(replace(submission, duration=None) for submission in pods))
    note = f"{result.started:,} of {result.pods:,} started on {result.hosts:,} nodes"
    stay = Figure(f"{name}, all pods stay", spent, 60.0, note)
    busy = host(2, Policy.SINGLE_NUMA_NODE, cpus=128)
    cluster = [HostGroup(name="node", machine=busy.machine, settings=busy.settings, count=HOSTS)]
    trace = generate_for_cluster(Profile.TELCO, cluster, seed=1, pods=GENERATED, load=0.9)
    spent, result = simulate(cluster, trace)
    each = spent / GENERATED
    note = f"{1 / each:,.0f} pods/s, {result.started:,} started"
    generated = Figure(f"a generated pod on {HOSTS:,} nodes", each, 1 / 1500, note)
    return [stay, generated, Figure("memory of both", peak_megabytes(), 1000, unit="MB")]


def simulate(groups: list[HostGroup], pods: tuple[PodSubmission, ...]) -> tuple[float, FleetResult]:
    """Return the CPU time of one simulation with our strategy, and its result."""
    return cpu_time(lambda: ClusterSimulation(groups, pods).run())


def sweep(engine: Engine) -> float:
    """Return the time of some equal simulations, without the start of the processes."""
    kubelet = host(2, Policy.SINGLE_NUMA_NODE, cpus=128)
    task = SweepTask(
        machine="m",
        configuration="c",
        strategy="alignup",
        seed=1,
        groups=(HostGroup(name="node", machine=kubelet.machine, settings=kubelet.settings, count=20),),
        workload=WorkloadDescription(profile="telco", pods=1000, load=0.9),
        retries=6,
        fingerprint="",
    )
    with engine:
        short = replace(task, workload=WorkloadDescription(profile="telco", pods=1))
        list(engine.results(run_packed, [pack(short)] * 4))
        start = perf_counter()
        list(engine.results(run_packed, [pack(task)] * 6))
        return perf_counter() - start


def openb_workload() -> tuple[list[HostGroup], tuple[PodSubmission, ...], str]:
    directory = os.environ.get("ALIGNUP_OPENB")
    if directory:
        nodes = openb.read_nodes(Path(directory) / "openb_node_list_gpu_node.csv", settings)
        return list(nodes), openb.read_pods(Path(directory) / "openb_pod_list_default.csv"), "openb"
    groups: list[HostGroup] = []
    for (cpus, memory, gpus), count in NODES.items():
        machine = openb.build_machine(cpus, memory << 10, gpus)
        name = f"n{cpus}-{memory}-{gpus}"
        groups.append(HostGroup(name=name, machine=machine, settings=settings(machine), count=count))
    return groups, drawn_pods(), "a trace of the size of openb"


def drawn_pods() -> tuple[PodSubmission, ...]:
    """Return 8,152 pods with as many GPUs as those of openb; a few dozen sizes, like there."""
    random = Random(1)
    numbers = [gpus for gpus, count in PODS.items() for _ in range(count)]
    random.shuffle(numbers)
    shapes = {}
    for gpus in PODS:
        sizes = [(4, 16), (6, 12), (8, 30), (12, 24), (10, 40)] if gpus else [(1, 2), (2, 4), (16, 32), (32, 64)]
        shapes[gpus] = [
            openb.build_pod(1000 * cpus * max(gpus, 1), (memory << 10) * max(gpus, 1), gpus, guaranteed=guaranteed)
            for cpus, memory in sizes
            for guaranteed in (True, False)
        ]
    return tuple(
        PodSubmission(float(number), replace(random.choice(shapes[gpus]), name=f"pod-{number}", uid=f"pod-{number}"))
        for number, gpus in enumerate(numbers)
    )


def settings(_: Machine) -> Settings:
    reservation = {"cpu": Quantity.parse("1"), "memory": Quantity.parse("2Gi")}
    return Settings(
        topology=TopologySettings(policy=Policy.RESTRICTED),
        cpus=CpuSettings(policy="static", reservation=reservation["cpu"]),
        reservation=reservation,
    )
