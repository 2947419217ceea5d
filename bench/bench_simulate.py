"""Simulations: pods that arrive and depart on 8 NUMA nodes with 256 CPUs, including the report."""

import io
from collections.abc import Iterator, Sequence
from functools import partial
from operator import itemgetter
from random import Random

from alignup.align.settings import Policy
from alignup.simulate.arrivals import PodArrival, PodDeparture, WorkloadEvent
from alignup.simulate.generate import Profile, generate
from alignup.simulate.node_simulation import SimulationResult, run
from alignup.simulate.trace import read, write
from bench.bench_admit import host, pod
from bench.harness import Figure, best_cpu, cpu_time

PODS = 4000
ROUNDS = 3


def figures() -> Iterator[Figure]:
    events = arrivals_and_departures()
    for policy in (Policy.BEST_EFFORT, Policy.SINGLE_NUMA_NODE):
        yield simulated(f"{policy}", events, policy, budget=1 / 8000)
    machine = host(8, Policy.NONE, cpus=256).machine
    for profile in Profile:
        generated = generate(profile, machine, seed=1, pods=PODS // 4)
        yield simulated(f"generated, {profile}", generated, Policy.SINGLE_NUMA_NODE, budget=None)
    yield from workload_figures(events)


def arrivals_and_departures() -> tuple[WorkloadEvent, ...]:
    """Return pods with one container; about forty are present at a time."""
    random = Random(1)
    shapes = [(cpus, memory, gpus) for cpus in (1, 2, 4, 8) for memory in ("1Gi", "4Gi", "12Gi") for gpus in (0, 1)]
    events: list[WorkloadEvent] = []
    for number, (cpus, memory, gpus) in enumerate(random.choices(shapes, k=PODS)):
        arriving = pod(f"pod-{number}", cpus=cpus, memory=memory, gpus=gpus)
        events += [PodArrival(float(number), arriving), PodDeparture(number + 40 + random.random(), arriving.uid)]
    return tuple(events)


def simulated(name: str, events: Sequence[WorkloadEvent], policy: Policy, *, budget: float | None) -> Figure:
    """Return the CPU time of a whole simulation per pod."""
    spent, result = min((once(events, policy) for _ in range(ROUNDS)), key=itemgetter(0))
    each = spent / len(result.outcomes)
    return Figure(f"simulation, {name}, per pod", each, budget, f"{1 / each:,.0f} pods/s, {result.admitted} admitted")


def once(events: Sequence[WorkloadEvent], policy: Policy) -> tuple[float, SimulationResult]:
    """Return the CPU time of one run on an idle host, and its result."""
    return cpu_time(partial(run, host(8, policy, cpus=256), events))


def workload_figures(events: Sequence[WorkloadEvent]) -> Iterator[Figure]:
    machine = host(8, Policy.NONE, cpus=256).machine
    seconds = best_cpu(partial(generate, Profile.MIXED, machine, seed=1, pods=1000), rounds=3)
    yield Figure("1,000 pods generated", seconds)
    text = io.StringIO()
    write(events, text)
    yield Figure(f"a trace of {PODS:,} pods written", best_cpu(lambda: write(events, io.StringIO()), rounds=3))
    yield Figure(f"a trace of {PODS:,} pods read", best_cpu(lambda: read(text.getvalue()), rounds=3))
