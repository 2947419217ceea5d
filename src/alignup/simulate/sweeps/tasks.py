"""One combination of a sweep: what it needs, and the row of its results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from alignup.align.errors import AlignError
from alignup.simulate.cluster.generate import generate
from alignup.simulate.cluster.groups import HostGroup
from alignup.simulate.cluster.result_documents import FleetResult
from alignup.simulate.cluster.simulation import ClusterSimulation
from alignup.simulate.cluster.submissions import PodSubmission
from alignup.simulate.executors import pack, raise_if_cancelled, unpack
from alignup.simulate.generate import Profile
from alignup.simulate.sweeps.spec import WorkloadDescription

Row = Mapping[str, str]

KEYS = ("machine", "configuration", "strategy", "seed")
COLUMNS = (
    *KEYS,
    *("nodes", "pods", "started", "failed", "pending", "rejections", "rejected_pods", "mispredictions"),
    *("waiting_mean", "waiting_p50", "waiting_p90", "waiting_p99", "waiting_max", "requested"),
    *("pods_by_numa_nodes", "mean_distance", "stranded_cpus", "stranded_memory", "stranded_devices"),
    *("error", "fingerprint"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTask:
    """One simulation; it can run anywhere and any number of times, with the same result."""

    machine: str
    configuration: str
    strategy: str
    seed: int
    groups: tuple[HostGroup, ...]  #: empty if there is an error
    workload: WorkloadDescription
    submissions: tuple[PodSubmission, ...] = ()  #: of a trace
    retries: int
    error: str = ""  #: why a kubelet does not start with this configuration on this machine
    fingerprint: str  #: equal for tasks with the same input

    @property
    def keys(self) -> dict[str, str]:
        return {name: str(getattr(self, name)) for name in KEYS}


def run_packed(parcel: bytes) -> Row:
    """Run a packed task; in a worker."""
    task: SweepTask = unpack(parcel)
    return run_task(task)


def pack_task(task: SweepTask) -> bytes:
    return pack(task)


def run_task(task: SweepTask) -> Row:
    """The row of one task: its figures, or why there are none."""
    raise_if_cancelled()
    row = {**dict.fromkeys(COLUMNS, ""), **task.keys, "fingerprint": task.fingerprint}
    if task.error:
        return {**row, "error": task.error}
    try:
        submissions = make_submissions(task.workload, task.groups, seed=task.seed, submissions=task.submissions)
        simulation = ClusterSimulation(task.groups, submissions, task.strategy, retries=task.retries)
        return {**row, **figures(simulation.run(raise_if_cancelled))}
    except AlignError as error:
        return {**row, "error": str(error)}


def make_submissions(
    workload: WorkloadDescription,
    groups: Sequence[HostGroup],
    *,
    seed: int,
    submissions: tuple[PodSubmission, ...] = (),
) -> tuple[PodSubmission, ...]:
    """The pods of a workload; *submissions* are those of its trace, if it has one."""
    found = submissions
    if workload.profile:
        found = generate(Profile(workload.profile), groups, seed=seed, pods=workload.pods, load=workload.load)
    if workload.rate != 1:
        found = tuple(replace(one, time=one.time / workload.rate) for one in found)
    return tuple(replace(one, duration=None) for one in found) if workload.stay else found


def figures(result: FleetResult) -> Row:
    waiting = result.waiting
    return {
        "nodes": str(result.hosts),
        **{name: str(getattr(result, name)) for name in ("pods", "started", "failed", "pending", "rejected_pods")},
        "rejections": str(result.rejected),
        "mispredictions": str(result.mispredictions),
        **{f"waiting_{name}": f"{getattr(waiting, name):g}" for name in ("mean", "p50", "p90", "p99", "max")},
        "requested": _join({name: f"{use.share:.4f}" for name, use in result.use.items()}),
        "pods_by_numa_nodes": _join(result.alignment.pods_by_numa_nodes),
        "mean_distance": f"{result.alignment.mean_distance:g}",
        "stranded_cpus": str(result.stranded.cpus),
        "stranded_memory": str(result.stranded.memory),
        "stranded_devices": _join(result.stranded.devices),
    }


def _join(values: Mapping[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())
