"""How many more pods of one shape fit in a simulated cluster at peak demand, after moves of running pods."""

from collections.abc import Iterable, Sequence

from alignup.align.ledger import Ledger
from alignup.align.workload import Pod
from alignup.placement.cluster import Cluster
from alignup.placement.host_report import HostReport
from alignup.placement.moves import MoveRules, PendingPod, RunningPod
from alignup.simulate.arrivals import PodSubmission
from alignup.simulate.cluster_hosts import SimulatedHost

MOVES = (1, 5, 20, 100)  #: after so many moves, gains are reported
MAX_TRIES = 200_000  #: sets of pods; a limit in seconds would make results differ
CLAIMS = "with ResourceClaims"


def count_gained_pods(
    hosts: Sequence[SimulatedHost], ledgers: Sequence[Ledger], shape: Pod, submissions: Iterable[PodSubmission]
) -> dict[str, int]:
    """Return how many pods like *shape* fit after 0, 1, 5 … moves; every pod without claims may move."""
    submissions_by_uid = {submission.pod.uid: submission for submission in submissions}
    cluster, running = Cluster(max_unconfirmed=None), {}
    names: dict[tuple[object, ...], frozenset[str]] = {}  #: hosts by selector
    for host, ledger in zip(hosts, ledgers, strict=True):
        kubelet = host.kubelet
        cluster.confirm(
            HostReport(host=host.name, machine=kubelet.machine, settings=kubelet.settings, ledger=ledger, sequence=1)
        )
        for uid, admitted in ledger.pods.items():
            running[uid] = RunningPod(
                pod=admitted.pod,
                host=host.name,
                protected=CLAIMS if admitted.pod.uses_claims else "",
                hosts=_hosts_of(submissions_by_uid.get(uid), hosts, names),
            )
    tries = 0

    def should_stop() -> bool:
        nonlocal tries
        tries += 1
        return tries > MAX_TRIES

    rules = MoveRules(pods=running, max_moves=max(MOVES), should_stop=should_stop)
    result = cluster.planner(rules, [shape]).defragment(PendingPod(shape))
    return {"0": result.fitting, **{str(moves): result.fitting + result.gained(moves) for moves in MOVES}}


def _hosts_of(
    submission: PodSubmission | None, hosts: Sequence[SimulatedHost], names: dict[tuple[object, ...], frozenset[str]]
) -> frozenset[str] | None:
    if submission is None or not submission.selector:
        return None
    key = tuple(sorted((label, tuple(values)) for label, values in submission.selector.items()))
    if key not in names:
        names[key] = frozenset(host.name for host in hosts if submission.matches(host.labels))
    return names[key]
