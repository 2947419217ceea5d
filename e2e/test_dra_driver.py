"""A real kubelet and scheduler with our DRA driver: registration, claims, extended resources, and faults.

What they answer is compared with the recordings in ``tests/kubernetes/data/dra``, which other tests use;
``ALIGNUP_RECORD=1`` writes them again.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e import cluster_guest
from e2e.api import NODES, PODS, Api, Document, until
from e2e.cluster_bed import ClusterBed
from e2e.cluster_guest import NARROW, ClusterGuest
from e2e.guest_kubelet import KUBELET_ACCESS
from e2e.marks import needs
from e2e.observed_node import make_claim_pod, make_container, make_pod
from tests.schedule.claim_objects import device_class, template

pytestmark = needs(cluster_guest.missing())

NODE, DRIVER = "node-a", "gpu.example.com"
EXTENDED, IMPLICIT = "example.com/gpu", f"deviceclass.resource.kubernetes.io/{DRIVER}"
GROUP = "/apis/resource.k8s.io/v1"
SLICES, CLAIMS = f"{GROUP}/resourceslices", f"{GROUP}/namespaces/default/resourceclaims"
PREPARE, UNPREPARE = "NodePrepareResources", "NodeUnprepareResources"
#: One GPU on each of four NUMA nodes.
GPUS = [
    {
        "name": f"gpu-{node}",
        "numa_nodes": [node],
        "pcie_root": f"pci0000:{16 * node:02x}",
        "pci_bus_id": f"0000:{16 * node + 1:02x}:00.0",
        "attributes": {"model": "x100"},
        "capacity": {"memory": "80Gi"},
    }
    for node in range(4)
]
ON_NODE_2 = "device.attributes['resource.kubernetes.io'].numaNode == 2"
RECORDINGS = Path(__file__).parents[1] / "tests" / "kubernetes" / "data" / "dra"
RECORD = bool(os.environ.get("ALIGNUP_RECORD"))


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterBed]:
    """A cluster of one node, without observers."""
    with ClusterBed(tmp_path_factory.mktemp("cluster"), {NODE: NARROW}, images={}) as cluster:
        cluster.plane.start_scheduler()
        for document in cluster.nodes[NODE].guest.ask("start_driver", name=DRIVER, devices=GPUS):
            check_recording("resource_slice", cluster.api.create(document))
        on_2 = template("gpu-on-2", class_name=DRIVER, selector=ON_NODE_2)
        check_recording("resource_claim_template", cluster.api.create(on_2))
        for name, resource in ((DRIVER, ""), ("extended-gpu", EXTENDED)):
            document = device_class(name, extended=resource, selector=f"device.driver == '{DRIVER}'")
            check_recording(f"device_class_{name}", cluster.api.create(document))
        yield cluster


@pytest.fixture
def api(bed: ClusterBed) -> Api:
    return bed.api


@pytest.fixture
def guest(bed: ClusterBed) -> Iterator[ClusterGuest]:
    """The node; its pods and claims are gone afterwards."""
    yield bed.nodes[NODE].guest
    for pod in bed.api.items(PODS):
        bed.api.delete(pod["metadata"]["name"])
    until("the claims are gone", lambda: not bed.api.items(CLAIMS), detail=lambda: bed.api.items(CLAIMS))


def claim_pod(name: str) -> Document:
    """Return a pod of one CPU with a GPU on NUMA node 2."""
    return make_claim_pod(name, "gpu-on-2", make_container(cpu=1, memory="32Mi"))


def extended_pod(name: str, resource: str, count: int) -> Document:
    container = make_container(cpu=1, memory="32Mi")
    container["resources"]["limits"][resource] = str(count)
    return make_pod(name, container, schedulerName="default-scheduler")


def only_claim(api: Api) -> Document:
    (claim,) = api.items(CLAIMS)
    return api.request("GET", f"{CLAIMS}/{claim['metadata']['name']}")  # an item of a list has no kind


def listed(guest: ClusterGuest) -> Document:
    """Return PodResources' List response."""
    response: Document = guest.ask("resources")["podresources_list"]
    return response


def only_container(response: Document) -> Document:
    (pod,) = response["pod_resources"]
    (container,) = pod["containers"]
    result: Document = container
    return result


def devices(container: Document) -> list[str]:
    """Return the devices of claims that PodResources lists."""
    claims = container["dynamic_resources"]
    return sorted(device["device_name"] for claim in claims for device in claim["claim_resources"])


def test_a_claim_is_prepared_listed_and_unprepared_but_not_aligned(api: Api, guest: ClusterGuest) -> None:
    api.request("POST", PODS, claim_pod("claimed"))
    pod = api.wait_phase("claimed", "Running", "Failed")
    claim = only_claim(api)
    response = listed(guest)
    running = guest.ask("driver_state", name=DRIVER)
    api.delete("claimed")
    ended = guest.ask("driver_state", name=DRIVER)

    uid = claim["metadata"]["uid"]
    assert pod["status"]["phase"] == "Running"
    assert running["prepared"] == {uid: ["gpu-2"]}
    calls = [[state[method].count([uid]) for method in (PREPARE, UNPREPARE)] for state in (running, ended)]
    assert calls == [[1, 0], [1, 1]]
    assert ended["prepared"] == {}
    container = only_container(response)
    assert devices(container) == ["gpu-2"]
    # The policy is single-numa-node, and the GPU is on NUMA node 2: claims give the Topology Manager no hints.
    assert container["cpu_ids"] == ["1"]
    assert [block["topology"]["nodes"] for block in container["memory"]] == [[{"ID": "0"}]]
    check_recording("pod_claimed", pod)
    check_recording("resource_claim_claimed", claim)
    check_recording("pod_resources_claimed", response)


def test_a_pod_starts_once_its_claim_can_be_prepared(api: Api, guest: ClusterGuest) -> None:
    guest.ask("fail_claim", name=DRIVER, claim="*", fault={"error": "too hot"})
    api.request("POST", PODS, claim_pod("late"))
    event = until("the claim cannot be prepared", lambda: find_event(api, "late", "FailedPrepareDynamicResources"))
    pod, response = api.pod("late"), listed(guest)
    guest.ask("fail_claim", name=DRIVER, claim="*", fault={})
    # The kubelet tries again after 60 to 90 seconds, or when the pod changes.
    change = {"metadata": {"annotations": {"example.com/try": "again"}}}
    api.merge(f"{PODS}/late", change)
    started = api.wait_phase("late", "Running", "Failed")

    assert pod is not None
    assert event["message"].endswith(": too hot")
    assert pod["status"]["phase"] == "Pending"
    assert devices(only_container(response)) == []
    assert started["status"]["phase"] == "Running"
    assert devices(only_container(listed(guest))) == ["gpu-2"]
    check_recording("pod_unprepared", pod)
    check_recording("pod_resources_unprepared", response)


@pytest.mark.parametrize(
    ("name", "resource", "count"),
    [pytest.param("extended", EXTENDED, 2, id="by name"), pytest.param("implicit", IMPLICIT, 1, id="by device class")],
)
def test_an_extended_resource_of_a_device_class_gives_a_claim(
    api: Api, guest: ClusterGuest, name: str, resource: str, count: int
) -> None:
    api.request("POST", PODS, extended_pod(name, resource, count))
    pod = api.wait_phase(name, "Running", "Failed")
    claim = only_claim(api)
    response = listed(guest)

    status = pod["status"]["extendedResourceClaimStatus"]
    assert pod["status"]["phase"] == "Running"
    assert status["resourceClaimName"] == claim["metadata"]["name"]
    assert [mapping["resourceName"] for mapping in status["requestMappings"]] == [resource]
    assert len(devices(only_container(response))) == count
    check_recording(f"pod_{name}", pod)
    check_recording(f"resource_claim_{name}", claim)
    check_recording(f"pod_resources_{name}", response)


def test_devices_of_a_plugin_reject_a_pod_with_a_claim_for_the_same_resource(api: Api, guest: ClusterGuest) -> None:
    def allocatable() -> object:
        return (api.get(f"{NODES}/{NODE}") or {})["status"]["allocatable"].get(EXTENDED)

    guest.ask("start_plugin", resource=EXTENDED, devices={"old-0": [3]})
    until("the plugin's device is allocatable", lambda: allocatable() == "1")
    api.request("POST", PODS, extended_pod("by-plugin", EXTENDED, 1))
    by_plugin = api.wait_phase("by-plugin", "Running", "Failed")
    container = only_container(listed(guest))
    api.delete("by-plugin")
    guest.ask("stop_plugin", resource=EXTENDED)
    until("the plugin's device is not allocatable", lambda: allocatable() == "0")
    calls = guest.ask("driver_state", name=DRIVER)[PREPARE]
    api.request("POST", PODS, extended_pod("rejected", EXTENDED, 1))
    rejected = api.wait_phase("rejected", "Running", "Failed")

    # The scheduler prefers the plugin wherever it has healthy devices.
    assert "extendedResourceClaimStatus" not in by_plugin["status"]
    assert [each["device_ids"] for each in container["devices"]] == [["old-0"]]
    # Without any, it allocates a claim; but the plugin's devices, which are gone, still give hints.
    assert "extendedResourceClaimStatus" in rejected["status"]
    assert rejected["status"]["reason"] == "TopologyAffinityError"
    assert guest.ask("driver_state", name=DRIVER)[PREPARE] == calls
    check_recording("pod_rejected", rejected)


def test_the_program_publishes_and_prepares_with_the_permissions_of_the_kubelet(api: Api, guest: ClusterGuest) -> None:
    words = ["--name", "nic.example.com", "--devices", "1@1,1@3", "--node", NODE, "--kubeconfig", str(KUBELET_ACCESS)]
    guest.ask("start_alignup", name="nic", module="alignup.testing.dra_driver", words=words)
    log: Callable[[], object] = lambda: guest.ask("log", name="nic")  # noqa: E731
    until("the slice is published", lambda: api.get(f"{SLICES}/{NODE}-nic.example.com-0"), detail=log)
    api.create(device_class("nic.example.com", selector="device.driver == 'nic.example.com'"))
    api.request("POST", PODS, extended_pod("nic", "deviceclass.resource.kubernetes.io/nic.example.com", 2))
    pod = api.wait_phase("nic", "Running", "Failed", detail=log)

    assert pod["status"]["phase"] == "Running"
    assert devices(only_container(listed(guest))) == ["nic-0", "nic-1"]
    api.delete("nic")
    assert guest.ask("stop_process", name="nic") == 0


def test_slices_of_a_stopped_driver_are_removed(api: Api, guest: ClusterGuest) -> None:
    (document,) = [part for part in api.items(SLICES) if part["spec"]["driver"] == DRIVER]
    guest.ask("change_driver", name=DRIVER, to="stop")
    until("the kubelet has removed the slice", lambda: api.get(f"{SLICES}/{document['metadata']['name']}") is None)
    api.request("POST", PODS, claim_pod("waiting"))
    until("nothing can be allocated", lambda: find_event(api, "waiting", "FailedScheduling"))

    guest.ask("change_driver", name=DRIVER, to="start")
    del document["metadata"]["resourceVersion"], document["metadata"]["uid"]
    api.create({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **document})

    assert api.wait_phase("waiting", "Running", "Failed")["status"]["phase"] == "Running"


def find_event(api: Api, pod: str, reason: str) -> Document | None:
    return next((event for event in api.events(pod) if event["reason"] == reason), None)


def check_recording(name: str, document: Document) -> None:
    """Compare a document with its recording, or write that."""
    path = RECORDINGS / f"{name}.json"
    text = normalize(document)
    if RECORD:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text


def normalize(document: Document) -> str:
    """Return a document as text in which generated names, uids, times and digests do not change from run to run."""
    metadata = {key: value for key, value in document.get("metadata", {}).items() if key != "managedFields"}
    text = json.dumps({**document, **({"metadata": metadata} if metadata else {})}, indent=1, sort_keys=True) + "\n"
    for uid, name in named_uids(document).items():
        text = text.replace(uid, f"uid-of-{name}")
    text = re.sub(r'"[0-9T:-]{19}Z"', '"2026-01-01T00:00:00Z"', text)
    text = re.sub(r'("resourceVersion": )"[0-9]+"', r'\1"1"', text)
    text = re.sub(r"(-gpu|-extended-resources)-[a-z0-9]{5}\b", r"\1-x", text)
    return re.sub(r"(containerd://|sha256:)[0-9a-f]{64}", r"\1x", text)


def named_uids(part: object) -> dict[str, str]:
    """Return the names of the objects whose uids are anywhere in a document."""
    uids: dict[str, str] = {}
    if isinstance(part, dict):
        uids |= {part["uid"]: part["name"]} if {"uid", "name"} <= part.keys() else {}
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        uids |= named_uids(inner)
    return uids
