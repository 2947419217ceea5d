"""The same workloads on a real cluster with an unmodified kube-scheduler, and with one that asks our extender."""
# ruff: noqa: S101, T201

import os
import time
from collections.abc import Iterator

import pytest

from e2e import cluster_guest
from e2e.cluster_bed import ClusterBed
from e2e.cluster_guest import NARROW, WIDE
from e2e.cluster_workloads import PodCounts, Workload, clear, workloads

WHY = cluster_guest.missing()
pytestmark = pytest.mark.skipif(WHY is not None, reason=WHY or "")

SHAPES = {"narrow": NARROW, "wide": WIDE, "wide-2": WIDE}
#: The number of pods of S4, and the names of the workloads to run.
PODS = int(os.environ.get("ALIGNUP_CLUSTER_PODS", "40"))
NAMES = os.environ.get("ALIGNUP_CLUSTER_WORKLOADS", "S1 S2 S3 S4 S5 S5b").split()
CHOSEN = [one for one in workloads(*SHAPES, pods=PODS) if one.name in NAMES]


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterBed]:
    needed = {name for one in CHOSEN for name in one.nodes}
    shapes = {name: shape for name, shape in SHAPES.items() if name in needed}
    with ClusterBed(tmp_path_factory.mktemp("cluster"), shapes) as made:
        print(f"\nnodes ready after {made.seconds:.0f} s")
        made.check("start")
        yield made


def run_workload(bed: ClusterBed, workload: Workload, scheduler: str) -> PodCounts:
    """Run a workload alone, print what became of its pods, compare them with predictions, and leave nothing of it."""
    bed.use_nodes(*workload.nodes)
    begun = time.monotonic()
    found = workload.run(bed.api)
    print(f"{workload.name} {scheduler}: {found} after {time.monotonic() - begun:.0f} s", flush=True)
    assert bed.mispredictions() == []
    clear(bed.api)
    bed.check(f"end of {workload.name}")
    return found


def test_no_pod_is_rejected_with_the_extender(bed: ClusterBed) -> None:
    bed.plane.start_scheduler()
    baseline = {one.name: run_workload(bed, one, "kube-scheduler") for one in CHOSEN}
    with bed.extender() as predictions:
        ours = {one.name: run_workload(bed, one, "with alignup") for one in CHOSEN}
        lines = predictions()
    print(*lines, sep="\n")
    assert all('outcome="as_predicted"' in line for line in lines)
    assert sum(found.rejected for found in baseline.values()), "the workloads are no trouble on this cluster"
    assert {name: found.rejected + found.failed for name, found in ours.items()} == dict.fromkeys(ours, 0)
    for name, found in ours.items():
        done = found.running + found.succeeded
        assert done >= baseline[name].running + baseline[name].succeeded, name
