"""Pods with claims beside pods without, on real nodes: under an unmodified kube-scheduler, our extender, and our gate.

Both nodes have a DRA driver with GPUs on every NUMA node. No pod is rejected, none stays pending, and the printed table
says how many claim pods have their CPUs beside their GPU.
"""

import json
from collections.abc import Iterator

import pytest

from alignup.align import bits
from e2e import cluster_guest, control_plane
from e2e.api import PODS, Document, until
from e2e.cluster_bed import ClusterBed
from e2e.cluster_guest import NARROW, WIDE
from e2e.cluster_workloads import clear, count_pods
from e2e.guest import Shape
from e2e.marks import needs
from e2e.observed_node import make_claim_pod, make_container, make_pod
from tests.schedule.claim_objects import DRIVER, device_class, template

pytestmark = needs(cluster_guest.missing())

SHAPES = {"narrow": NARROW, "wide": WIDE}
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
#: Three and four CPUs of the wide node are free, and seven of the narrow one; each has four GPUs.
CLAIM_PODS, PLAIN_PODS = 6, 4
REQUIRE = "topology.alignup.dev/claims"


def gpus(shape: Shape) -> list[Document]:
    """Return four GPUs, evenly on the NUMA nodes."""
    nodes = len(shape.nodes)
    return [{"name": f"gpu-{number}", "numa_nodes": [number * nodes // 4]} for number in range(4)]


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterBed]:
    programs = next(iter(control_plane.directories()), None)
    with ClusterBed(tmp_path_factory.mktemp("cluster"), SHAPES, programs=programs) as cluster:
        for name, shape in SHAPES.items():
            for document in cluster.nodes[name].guest.ask("start_driver", name=DRIVER, devices=gpus(shape)):
                cluster.api.create(document)
        cluster.api.create(device_class())
        cluster.api.create(template())
        cluster.check("start")
        yield cluster


def claim_pod(name: str, **annotations: str) -> Document:
    pod = make_claim_pod(name, "gpus", make_container(cpu=1, memory="32Mi"))
    pod["metadata"]["annotations"] = annotations
    return pod


def run(bed: ClusterBed) -> tuple[int, int]:
    """Create all pods at once, wait until they run, and return how many claim pods are aligned, and how many not."""
    for number in range(max(CLAIM_PODS, PLAIN_PODS)):
        if number < CLAIM_PODS:
            bed.api.request("POST", PODS, claim_pod(f"claim-{number}"))
        if number < PLAIN_PODS:
            plain = make_container(cpu=1, memory="32Mi")
            bed.api.request("POST", PODS, make_pod(f"plain-{number}", plain, schedulerName="default-scheduler"))

    def started() -> bool:
        counts = count_pods(bed.api)
        return counts.running + counts.rejected + counts.failed == CLAIM_PODS + PLAIN_PODS

    until("all pods are decided on", started, detail=lambda: json.dumps(bed.api.items(PODS))[:20_000])
    # A claim is listed once the kubelet has prepared it, after the admission.
    until("all claims are prepared", lambda: sum(alignment(bed)) == CLAIM_PODS, detail=lambda: alignment(bed))
    return alignment(bed)


def alignment(bed: ClusterBed) -> tuple[int, int]:
    """Return how many containers with a GPU of a claim have their CPUs beside it, and how many not."""
    aligned = unaligned = 0
    for name, shape in SHAPES.items():
        places = {gpu["name"]: gpu["numa_nodes"][0] for gpu in gpus(shape)}
        listed = bed.nodes[name].guest.ask("resources")["podresources_list"]["pod_resources"]
        for container in (container for pod in listed for container in pod["containers"]):
            devices = [
                device["device_name"]
                for claim in container.get("dynamic_resources", ())
                for device in claim["claim_resources"]
            ]
            cpus = {int(cpu) for cpu in container.get("cpu_ids", ())}
            for device in devices:
                if cpus <= set(bits.members(bits.parse(shape.nodes[places[device]].cpus))):
                    aligned += 1
                else:
                    unaligned += 1
    return aligned, unaligned


def finish(bed: ClusterBed) -> None:
    clear(bed.api)
    until("the claims are gone", lambda: not bed.api.items(CLAIMS), detail=lambda: bed.api.items(CLAIMS))


def test_claim_pods_run_beside_others_and_none_is_rejected(bed: ClusterBed) -> None:
    results: dict[str, tuple[int, int]] = {}
    bed.plane.start_scheduler()
    results["kube-scheduler"] = run(bed)
    finish(bed)
    for mode, service in (("extender", bed.extender), ("gate", bed.gate)):
        with service() as replicas:
            results[mode] = run(bed)
            counts = count_pods(bed.api)
            assert (counts.rejected, counts.failed, counts.pending) == (0, 0, 0), f"{mode}: {counts}"
            assert bed.mispredictions() == []
            wrong = [labels for labels in replicas.predictions() if 'outcome="as_predicted"' not in labels]
            assert wrong == [], mode
            finish(bed)
    print("\n| scheduler | claim pods aligned | not aligned |\n|---|---|---|")
    for scheduler, (aligned, unaligned) in results.items():
        print(f"| {scheduler} | {aligned} | {unaligned} |", flush=True)


@pytest.mark.parametrize("mode", ["extender", "gate"])
def test_a_pod_that_requires_alignment_never_starts_without_it(bed: ClusterBed, mode: str) -> None:
    """It runs with its CPUs beside the GPU, or waits with an event that says why."""
    with bed.extender() if mode == "extender" else bed.gate():
        bed.api.request("POST", PODS, claim_pod("strict", **{REQUIRE: "require"}))

        def decided() -> str:
            pod = bed.api.pod("strict") or {"status": {"phase": ""}}
            reasons = {event["reason"] for event in bed.api.events("strict")}
            waits = reasons & {"ClaimsNotAligned", "NoNode"}
            return "runs" if pod["status"]["phase"] == "Running" else "waits" if waits else ""

        outcome = until("the pod runs, or waits with a reason", decided, detail=lambda: bed.api.events("strict"))
        if outcome == "runs":
            until("the claim is prepared", lambda: sum(alignment(bed)) == 1, detail=lambda: alignment(bed))
        print(f"{mode}: the pod {outcome}, aligned and not aligned: {alignment(bed)}", flush=True)
        assert alignment(bed) == ((1, 0) if outcome == "runs" else (0, 0))
        finish(bed)
