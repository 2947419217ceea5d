"""What moves bring on openb, beside random evictions of as many pods: ``python -m bench.random_evictions STRATEGY…``.

``ALIGNUP_OPENB`` names a directory with the CSV files of openb; see ``bench_fleet``. All pods stay. An evicted pod goes
to the best node then, as a scheduler would send it. This takes minutes, so it is no part of ``python -m bench``.
"""

import sys
from dataclasses import replace
from random import Random

from alignup.align.workload import Pod
from alignup.placement.cluster import Cluster
from alignup.placement.host_report import PodStage
from alignup.placement.moves import MoveRules, PendingPod
from alignup.simulate import openb
from alignup.simulate.arrivals import PodSubmission
from alignup.simulate.cluster_simulation import ClusterSimulation
from alignup.simulate.gained_pods import MOVES, count_gained_pods
from alignup.simulate.peak_state import PeakState
from bench.bench_fleet import openb_workload

RUNS = 3
SHAPES = (4, 8)  #: GPUs of the pods that are to fit


def main(strategies: list[str]) -> None:
    groups, submissions, name = openb_workload()
    staying = tuple(replace(submission, duration=None) for submission in submissions)
    for strategy in strategies or ["alignup", "alignup-most-allocated"]:
        simulation = ClusterSimulation(groups, staying, strategy)
        stranded = simulation.run().stranded
        print(f"{name}, {strategy}: {stranded.free_devices} are free")
        for gpus in SHAPES:
            shape = replace(openb.build_pod(8000 * gpus, 32 * gpus << 10, gpus, guaranteed=True), uid="shape")
            planned = count_gained_pods(simulation.peak, shape, staying)
            fitting = planned["0"]
            gains = [planned[str(moves)] - fitting for moves in MOVES]
            print(f"  pods with {gpus} GPUs: {fitting} fit, more after {MOVES} moves: {gains}")
            for seed in range(RUNS):
                evicted = [evict(simulation.peak, shape, staying, Random(seed), moves) for moves in MOVES]
                more, lost = [count - fitting for count, _ in evicted], [lost for _, lost in evicted]
                print(f"    random evictions, run {seed + 1}: {more}; evicted pods that fit nowhere: {lost}")


def evict(
    peak: PeakState, shape: Pod, submissions: tuple[PodSubmission, ...], random: Random, count: int
) -> tuple[int, int]:
    """Return how many pods like *shape* fit after *count* random pods went to the best nodes again.

    The second number is that of evicted pods for which there was no node.
    """
    cluster, lost = peak.cluster(), 0
    running = [each for each in peak.running(submissions) if not each.protected]
    chosen = random.sample(running, count)
    for each in chosen:
        cluster.observe(each.pod, each.host, PodStage.ENDED)
    for number, each in enumerate(chosen):
        pod = replace(each.pod, uid=f"again-{number}")
        ranked = cluster.rank(pod, each.hosts, limit=1)
        lost += not ranked
        for best in ranked:
            cluster.assume(pod, best.host)
    return count_fitting(cluster, shape), lost


def count_fitting(cluster: Cluster, shape: Pod) -> int:
    return cluster.planner(MoveRules(pods={}, max_moves=0), [shape]).defragment(PendingPod(shape)).fitting


if __name__ == "__main__":
    main(sys.argv[1:])
