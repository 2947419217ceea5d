"""How many more pods of one shape fit in a simulated cluster at peak demand, after moves of running pods."""

from collections.abc import Iterable

from alignup.align.workload import Pod
from alignup.placement.moves import MoveRules, PendingPod
from alignup.simulate.arrivals import PodSubmission
from alignup.simulate.peak_state import PeakState

MOVES = (1, 5, 20, 100)  #: after so many moves, gains are reported
MAX_TRIES = 200_000  #: sets of pods; a limit in seconds would make results differ


def count_gained_pods(peak: PeakState, shape: Pod, submissions: Iterable[PodSubmission]) -> dict[str, int]:
    """Return how many pods like *shape* fit after 0, 1, 5 … moves; every pod without claims may move."""
    running_runs = {run.pod.uid: run for run in peak.running(submissions)}
    tries = 0

    def should_stop() -> bool:
        nonlocal tries
        tries += 1
        return tries > MAX_TRIES

    rules = MoveRules(pods=running_runs, max_moves=max(MOVES), should_stop=should_stop)
    result = peak.cluster().planner(rules, [shape]).defragment(PendingPod(shape))
    return {"0": result.fitting, **{str(moves): result.fitting + result.gained(moves) for moves in MOVES}}
