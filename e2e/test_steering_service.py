"""The whole of steering on a real kubelet: kube-scheduler, ``alignup schedule`` as its extender, and the observer.

Pods that request a marker and name a NUMA node are compared with pods without the request.
"""

import json
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from alignup.align.workload.names import NUMA_ANNOTATION
from alignup.documents.steering import MARKER_RESOURCE
from alignup.placement.steered import STEERED_ANNOTATION
from e2e import cluster_guest
from e2e.api import PODS, Document, until
from e2e.cluster_bed import ClusterBed
from e2e.cluster_guest import NARROW
from e2e.cluster_workloads import clear
from e2e.marks import needs
from e2e.observed_node import make_container, make_pod
from e2e.schedule_replicas import ScheduleReplicas
from e2e.steered_node import INSTRUCTIONS, MARKERS, NODE, RETURN_SECONDS, SteeredNode, rounds

pytestmark = needs(cluster_guest.missing())

COUNT = 40
PLAIN = 14  #: pods without the request
HOLD = 20  #: seconds, for observer and service: an emulated node is slow
KILLS = 3
SERVICE = "alignup-schedule"


@dataclass
class PodTimes:
    """Seconds from the creation of pods."""

    bound: list[float] = field(default_factory=list)
    running: list[float] = field(default_factory=list)


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterBed]:
    with ClusterBed(tmp_path_factory.mktemp("cluster"), {NODE: NARROW}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def steered(bed: ClusterBed) -> SteeredNode:
    return SteeredNode(bed.nodes[NODE])


def create(bed: ClusterBed, name: str, numa: int | None) -> str:
    """Create a pod for kube-scheduler that is to be steered to *numa*, or not at all; return its uid."""
    container = make_container(cpu=1, memory="16Mi")
    document = make_pod(name, container, schedulerName="default-scheduler")
    if numa is not None:
        container["resources"]["limits"][MARKER_RESOURCE] = "1"
        document["metadata"]["annotations"] = {NUMA_ANNOTATION: str(numa)}
    return str(bed.api.request("POST", PODS, document)["metadata"]["uid"])


def run_in_turn(bed: ClusterBed, names: Mapping[str, int | None], times: PodTimes) -> None:
    """Create each pod after the HostState shows the one before."""
    node = bed.nodes[NODE]
    for name, numa in names.items():
        begun = time.monotonic()
        uid = create(bed, name, numa)
        until(f"{name} is bound", lambda: (bed.api.pod(name) or {})["spec"].get("nodeName"), detail=lambda: logs(bed))  # noqa: B023
        times.bound.append(time.monotonic() - begun)
        pod = bed.api.wait_admitted(name, node.logs)
        times.running.append(time.monotonic() - begun)
        assert pod["status"]["phase"] == "Running", pod["status"]
        until(f"{name} is shown", lambda: uid in known_pods(bed), detail=node.logs)  # noqa: B023


def known_pods(bed: ClusterBed) -> set[str]:
    """Return the uids of the pods in the HostState."""
    return {pod["uid"] for pod in bed.nodes[NODE].state().get("ledger", {}).get("pods", ())}


def finish_round(bed: ClusterBed) -> None:
    clear(bed.api)
    until("the HostState shows no pods", lambda: not known_pods(bed), detail=bed.nodes[NODE].logs)


def logs(bed: ClusterBed) -> str:
    return "\n".join([bed.plane.log("kube-scheduler"), bed.plane.log(SERVICE, 6000), bed.nodes[NODE].logs()])


def attempts(bed: ClusterBed, prefix: str) -> list[Document]:
    """Return what the service has logged about each attempt to steer a pod whose name begins with *prefix*."""
    entries = [json.loads(line) for line in bed.plane.log_lines(SERVICE, '"steering"').splitlines()]
    return [entry for entry in entries if entry["event"] == "steering" and entry["pod"].startswith(f"default/{prefix}")]


def show(step: str, seconds: list[float]) -> None:
    print(f"{step}: {len(seconds)}, p50 {statistics.median(seconds):.3f} s, longest {max(seconds):.3f} s", flush=True)


def test_every_pod_runs_on_the_numa_node_that_it_names(bed: ClusterBed, steered: SteeredNode) -> None:
    node = bed.nodes[NODE]
    steered.restart_observer(f"--steer-hold={HOLD}")
    node.check("start")
    plain, marked = PodTimes(), PodTimes()
    steered.wrong.clear()
    not_steered: list[str] = []
    with bed.extender(f"--steer-hold={HOLD}") as replicas:
        for expected in rounds(PLAIN):
            run_in_turn(bed, dict.fromkeys(expected), plain)
            finish_round(bed)
        for number, expected in enumerate(rounds(COUNT)):
            if number % 2:
                for name, numa in expected.items():
                    create(bed, name, numa)
                for name in expected:
                    bed.api.wait_admitted(name, lambda: logs(bed))
            else:
                run_in_turn(bed, dict(expected), marked)
            annotated = {name for name in expected if STEERED_ANNOTATION in annotations(bed, name)}
            not_steered += expected.keys() - annotated
            steered.check(expected)
            print(f"round {number}: {len(annotated)} of {len(expected)} steered, {steered.wrong}", flush=True)
            finish_round(bed)
        predictions = replicas.predictions()
    tried = attempts(bed, "pod-")
    print(f"{COUNT} pods, not steered {not_steered}, elsewhere {steered.wrong}", flush=True)
    print(f"outcomes {dict(Counter(entry['outcome'] for entry in tried))}, {dict(predictions)}", flush=True)
    show("steering added to a binding", [entry["seconds"] for entry in tried])
    show("of pods that were steered", [entry["seconds"] for entry in tried if entry["outcome"] == "ready"])
    for kind, times in (("without the request", plain), ("steered, in turn", marked)):
        show(f"creation → bound, {kind}", times.bound)
        show(f"creation → Running, {kind}", times.running)
    assert [text for text in steered.wrong if text.partition(":")[0] not in not_steered] == []
    assert len(not_steered) <= COUNT // 10, "the machine is too slow to tell"
    assert steered.offered() == MARKERS


def annotations(bed: ClusterBed, name: str) -> Document:
    metadata: Document = (bed.api.pod(name) or {})["metadata"]
    return dict(metadata.get("annotations", {}))


def test_a_leader_that_is_killed_leaves_no_marker_withdrawn(bed: ClusterBed, steered: SteeredNode) -> None:
    """With the usual times of observer and service."""
    node = bed.nodes[NODE]
    steered.restart_observer()
    node.check("start")
    steered.wrong.clear()
    withdrawals = 0
    with bed.extender(replicas=2) as replicas:
        for number in range(KILLS):
            name, numa = f"kill-{number}", 3 - number
            begun, interrupted = kill_leader(bed, replicas, name, numa)
            seconds = wait_restored(steered, begun) if interrupted else 0.0
            withdrawals += seconds > 0
            pod = bed.api.wait_admitted(name, lambda: logs(bed))
            print(
                f"leader killed {'in the middle' if interrupted else 'too late'}: markers back after {seconds:.1f} s, "
                f"{name} {pod['status']['phase']} after {time.monotonic() - begun:.1f} s, "
                f"{annotations(bed, name).get(STEERED_ANNOTATION, 'not steered')}",
                flush=True,
            )
            assert pod["status"]["phase"] == "Running", pod["status"]
            assert seconds < RETURN_SECONDS
            steered.check({name: numa})
            print(f"elsewhere: {steered.wrong}", flush=True)
            finish_round(bed)
            replicas.start()
            steered.wait_offered()
        print(f"outcomes {dict(Counter(entry['outcome'] for entry in attempts(bed, 'kill-')))}", flush=True)
    assert withdrawals, "no leader was killed while markers were withdrawn"


def kill_leader(bed: ClusterBed, replicas: ScheduleReplicas, name: str, numa: int) -> tuple[float, bool]:
    """Create a pod, and kill the leader once its instruction is there; return when, and whether the pod was unbound."""
    leader = replicas.wait_leader()
    uid = create(bed, name, numa)
    end = time.monotonic() + RETURN_SECONDS * 6
    while (instruction(bed).get("pod") or {}).get("uid") != uid:
        assert time.monotonic() < end, logs(bed)
    replicas.kill(leader)
    return time.monotonic(), not (bed.api.pod(name) or {})["spec"].get("nodeName")


def instruction(bed: ClusterBed) -> Document:
    """Return the spec of the instruction of the node."""
    return (bed.api.get(f"{INSTRUCTIONS}/{NODE}") or {}).get("spec") or {}


def wait_restored(steered: SteeredNode, begun: float) -> float:
    """Return the seconds from *begun* until withdrawn markers were back; 0 if the observer withdrew none."""
    withdrawn = False
    while True:
        offered, seconds = steered.offered(), time.monotonic() - begun
        withdrawn |= offered < MARKERS
        if offered == MARKERS and withdrawn:
            return seconds
        if not withdrawn and seconds > RETURN_SECONDS:
            return 0.0
        assert seconds < 6 * RETURN_SECONDS, steered.node.logs()
