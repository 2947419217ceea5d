"""The same workloads on a real cluster under an unmodified kube-scheduler, with our extender, and behind our gate.

``ALIGNUP_CLUSTER_WORKLOADS="S1 S2"`` and ``ALIGNUP_CLUSTER_PODS=8`` run less.
"""

import os
import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from e2e import cluster_guest, control_plane
from e2e.api import until
from e2e.cluster_bed import ClusterBed
from e2e.cluster_faults import FaultyCluster, start_plugins
from e2e.cluster_guest import NARROW, WIDE
from e2e.cluster_workloads import PodCounts, Workload, clear, count_pods, create_pod, workloads
from e2e.marks import needs
from e2e.observed_node import make_container
from e2e.programs import run_alignup
from e2e.schedule_replicas import ScheduleReplicas

pytestmark = needs(cluster_guest.missing())

SHAPES = {"narrow": NARROW, "wide": WIDE, "wide-2": WIDE}
#: The number of pods of S4 and of the run with faults, and the names of the workloads to run.
COUNT = int(os.environ.get("ALIGNUP_CLUSTER_PODS", "40"))
NAMES = os.environ.get("ALIGNUP_CLUSTER_WORKLOADS", "S1 S2 S3 S4 S5 S5b").split()
CHOSEN = [workload for workload in workloads(*SHAPES, pods=COUNT) if workload.name in NAMES]
MODES = ("extender", "gate")
FAULTY = ("wide", "wide-2")  #: where plugins, kubelets and observers stop and come again
#: Why a kubelet may decide otherwise although a prediction was right when it was made; see docs/why/placement.md.
FAULTS = {"kubelet_restart", "readmission", "devices", "foreign_pod", "host_resources", "pod_end"}


@pytest.fixture(scope="module", params=control_plane.directories() or (None,), ids=control_plane.version)
def bed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterBed]:
    """A cluster of each version of Kubernetes."""
    with ClusterBed(tmp_path_factory.mktemp("cluster"), SHAPES, programs=request.param) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def plugins(bed: ClusterBed) -> None:
    """Device plugins on the nodes with faults."""
    for name in FAULTY:
        start_plugins(bed.nodes[name])


@pytest.fixture(scope="module")
def results(bed: ClusterBed) -> Iterator[dict[str, dict[str, PodCounts]]]:  # noqa: ARG001 - for each cluster
    """Scheduler → workload → what became of its pods; printed as the table of docs/cluster-operation.md."""
    counts: dict[str, dict[str, PodCounts]] = {}
    yield counts
    print(f"\n| workload | {' | '.join(counts)} |\n|---{'|---' * len(counts)}|")
    for workload in CHOSEN:
        cells = [str(by_workload.get(workload.name, "")) for by_workload in counts.values()]
        print(f"| {workload.name} | {' | '.join(cells)} |")


@pytest.fixture(scope="module")
def baseline(bed: ClusterBed, results: dict[str, dict[str, PodCounts]]) -> dict[str, PodCounts]:
    """The pods of an unmodified scheduler."""
    bed.plane.start_scheduler()
    results["kube-scheduler"] = {workload.name: run_workload(bed, workload, "kube-scheduler") for workload in CHOSEN}
    return results["kube-scheduler"]


def run_workload(bed: ClusterBed, workload: Workload, scheduler: str) -> PodCounts:
    """Run a workload alone, print what became of its pods, compare them with predictions, and leave nothing of it."""
    bed.use_nodes(*workload.nodes)
    begun = time.monotonic()
    counts = workload.run(bed.api)
    print(f"{workload.name} {scheduler}: {counts} after {time.monotonic() - begun:.0f} s", flush=True)
    assert bed.mispredictions() == []
    clear(bed.api)
    bed.check(f"end of {workload.name}")
    return counts


def service(bed: ClusterBed, mode: str, *, replicas: int = 1) -> AbstractContextManager[ScheduleReplicas]:
    return bed.extender(replicas=replicas) if mode == "extender" else bed.gate(replicas=replicas)


@pytest.mark.parametrize("mode", MODES)
def test_no_pod_is_rejected(
    bed: ClusterBed, baseline: dict[str, PodCounts], results: dict[str, dict[str, PodCounts]], mode: str
) -> None:
    with service(bed, mode) as replicas:
        ours = results[mode] = {workload.name: run_workload(bed, workload, mode) for workload in CHOSEN}
        predictions = replicas.predictions()

    print(f"{mode}: {dict(predictions)}")
    assert sum(predictions.values())
    wrong = [labels for labels in predictions if 'outcome="as_predicted"' not in labels]
    # A pod can end after the prediction and before the admission; the next one then gets its CPUs, and is not rejected.
    assert all('outcome="placed_elsewhere"' in labels and 'cause="pod_end"' in labels for labels in wrong)
    assert sum(counts.rejected for counts in baseline.values()), "the workloads are no trouble on this cluster"
    assert {name: counts.rejected for name, counts in ours.items()} == dict.fromkeys(ours, 0)
    assert [reason for counts in ours.values() for reason in counts.reasons if "Pod was rejected" in reason] == []
    for name, counts in ours.items():
        assert counts.admitted >= baseline[name].admitted, name


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize("mode", MODES)
def test_faults_have_pods_rejected_only_for_known_causes(bed: ClusterBed, mode: str) -> None:
    """Plugins, kubelets, our service and an observer stop and come again while pods come and end."""
    bed.use_nodes(*FAULTY)
    with service(bed, mode, replicas=2) as replicas:
        counts = FaultyCluster(bed, replicas, *FAULTY).run(COUNT)
        predictions = replicas.predictions()
    clear(bed.api)
    log = bed.plane.log_lines("alignup-schedule", '"outcome"')
    print(f"faults, {mode}: {counts}, {dict(predictions)}\n{log}")
    wrong = {labels: count for labels, count in predictions.items() if 'outcome="as_predicted"' not in labels}
    assert all(re.search(r'cause="(\w+)"', labels)[1] in FAULTS for labels in wrong)  # type: ignore[index]
    assert counts.rejected <= sum(count for labels, count in wrong.items() if "rejected" in labels)


@pytest.mark.parametrize("mode", MODES)
def test_a_pod_that_fits_nowhere_waits_with_a_reason_and_runs_when_there_is_room(bed: ClusterBed, mode: str) -> None:
    """3 and 4 CPUs are free on the NUMA nodes of the node, then 1 and 2 of them: 3 CPUs together are on none."""
    bed.use_nodes("wide")
    with service(bed, mode):
        for number in range(2):
            create_pod(bed.api, f"holder-{number}", make_container(cpu=2, memory="32Mi"))
            bed.api.wait_phase(f"holder-{number}", "Running", detail=bed.nodes["wide"].logs)
        create_pod(bed.api, "waiting", make_container(cpu=3, memory="32Mi"))
        reason = "1 not enough cpu on one NUMA node"
        until("an event tells why", lambda: reason in messages(bed, "waiting"), detail=lambda: messages(bed, "waiting"))
        assert "Admitted: " not in why(bed, "waiting")
        assert "2 CPUs short (3 requested, 1 free)" in why(bed, "waiting")
        assert count_pods(bed.api) == PodCounts(running=2, pending=1)

        bed.api.delete("holder-0")
        begun = time.monotonic()
        until("the pod is bound", lambda: (bed.api.pod("waiting") or {})["spec"].get("nodeName"))
        print(f"{mode}: bound {time.monotonic() - begun:.1f} s after room appeared")
        bed.api.wait_phase("waiting", "Running", detail=bed.nodes["wide"].logs)
    clear(bed.api)


def messages(bed: ClusterBed, name: str) -> str:
    """Return the events of a pod, as ``kubectl describe`` shows them."""
    return "\n".join(f"{event.get('reason')}: {event.get('message')}" for event in bed.api.events(name))


def why(bed: ClusterBed, name: str) -> str:
    """Return what ``kubectl alignup why`` prints."""
    access = bed.plane.directory / "admin.kubeconfig"
    return run_alignup("cluster", "why", name, "--kubeconfig", access).stdout
