"""The observer and ``alignup cluster`` beside a real kubelet, through a scripted life of one node."""
# ruff: noqa: S101

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from e2e import cluster_guest
from e2e.api import PODS
from e2e.cluster_bed import ClusterBed
from e2e.cluster_guest import NARROW, kubelet_config
from e2e.observed_node import OBSERVER, ObservedNode, container, pod

WHY = cluster_guest.missing()
pytestmark = pytest.mark.skipif(WHY is not None, reason=WHY or "")

NODE = "node-a"
SHAPE = replace(NARROW, hugepages={1: 16, 2: 8})
#: Plugins: devices on one NUMA node each; one near two NUMA nodes, and one without topology.
GPUS = {"gpu-0": [0], "gpu-1": [1], "gpu-2": [1], "gpu-3": [3]}
NICS = {"nic-0": [2, 3], "nic-1": None}
STOPPED = "the device plugin of example.com/nic has stopped"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedNode]:
    with ClusterBed(tmp_path_factory.mktemp("cluster"), {NODE: SHAPE}) as bed:
        made = bed.nodes[NODE]
        made.timings["start"] = bed.seconds
        yield made
    for step, seconds in made.timings.items():
        print(f"{seconds:6.1f} s  {step}")  # noqa: T201


def test_what_is_published_and_predicted_is_what_the_kubelet_does(node: ObservedNode) -> None:
    live(node)


def live(node: ObservedNode) -> None:
    """The scripted life."""
    node.check("idle")
    start_plugins(node)
    send_pods(node)
    end_pods(node)
    restart_programs(node)
    change_configuration(node)


def start_plugins(node: ObservedNode) -> None:
    for name, devices in (("gpu", GPUS), ("nic", NICS)):
        start_plugin(node, name, devices)


def start_plugin(node: ObservedNode, name: str, devices: Mapping[str, list[int] | None]) -> None:
    offer = {
        "resource": f"example.com/{name}",
        "devices": [{"id": id_, "nodes": nodes} for id_, nodes in devices.items()],
        "preferred": False,
        "pre_start_required": False,
        "endpoint": f"{name}.sock",
    }
    node.guest.ask("start", offer=offer)
    node.check(f"plugin {name}")


def send_pods(node: ObservedNode) -> None:
    """Of 1, 2, 2 and 2 CPUs on the NUMA nodes 0 to 3."""
    node.send(pod("shared", container(cpu="100m", memory="32Mi", requests={"cpu": "50m"})))
    node.send(pod("besteffort", container()))
    first = node.send(pod("first", container(cpu=2, memory="64Mi", gpu=1)))
    assert first["status"]["phase"] == "Running"
    refused = node.send(pod("too-wide", container(cpu=3, memory="32Mi")))
    assert refused["status"]["reason"] == "TopologyAffinityError"
    node.send(
        pod(
            "parts",
            container("one", cpu=1, memory="32Mi"),
            container("two", cpu="500m", memory="32Mi"),
            init=[
                {**container("prepare", cpu=1, memory="48Mi"), "command": ["true"]},
                {**container("beside", cpu=1, memory="16Mi"), "restartPolicy": "Always"},
            ],
        )
    )
    second = node.send(
        pod("second-refused", container("one", cpu=1, memory="32Mi"), container("two", cpu=2, memory="32Mi"))
    )
    assert second["status"]["phase"] == "Failed"
    node.send(pod("pages", container(cpu=1, memory="32Mi", pages="8Mi", nic=1)))
    node.send(pod("no-room", container(cpu=6, memory="32Mi")))
    node.send(pod("after", container(cpu=1, memory="32Mi", gpu=1)))
    nodes = node.alignup("nodes")["nodes"]
    assert [one["node"] for one in nodes] == [NODE]
    assert not nodes[0]["problems"]


def end_pods(node: ObservedNode) -> None:
    node.end("first")
    node.send({**pod("short", {**container(cpu=1, memory="32Mi"), "command": ["true"]})})
    node.api.wait_phase("short", "Succeeded", detail=node.logs)
    node.check("pod short has ended")
    node.send(pod("third", container(cpu=2, memory="64Mi", gpu=2)))
    for name in ("parts", "pages"):
        node.end(name)
    node.send(pod("fourth", container(cpu=2, memory="300Mi")))


def restart_programs(node: ObservedNode) -> None:
    """Plugins, the kubelet and the observer stop and come again."""
    guest = node.guest
    guest.ask("health", resource="example.com/gpu", id_="gpu-3", health="Unhealthy")
    node.check("an unhealthy device")
    guest.ask("set_devices", resource="example.com/gpu", devices="1@0,2@1,1@3,1@2")
    node.check("other devices")
    guest.ask("stop", resource="example.com/nic")
    node.check("a plugin has stopped", problem=STOPPED)
    node.send(pod("no-nic", container(nic=1)), problem=STOPPED)
    node.restart_kubelet(kubelet_config())
    node.check("kubelet restarted")
    node.send(pod("still-no-nic", container(nic=1)))
    start_plugin(node, "nic", NICS)
    node.send(pod("fifth", container(cpu=1, memory="32Mi", gpu=1, nic=1)))
    node.restart_kubelet(kubelet_config(), number=9)
    node.check("kubelet killed")
    assert guest.ask("stop_process", name=OBSERVER) == 0
    node.api.request("POST", PODS, pod("unseen", container(cpu=1, memory="32Mi")))
    node.api.bind("unseen", NODE)
    node.api.wait_admitted("unseen", node.logs)
    node.start_observer()
    node.check("observer restarted")


def change_configuration(node: ObservedNode) -> None:
    """Other policies; without a state file where the kubelet requires that."""
    options = {"cpuManagerPolicyOptions": {"full-pcpus-only": "true"}}
    node.restart_kubelet(kubelet_config(topologyManagerPolicy="best-effort", topologyManagerScope="pod", **options))
    node.check("best-effort")
    for one in node.pods():
        if one["status"]["phase"] == "Running":
            node.end(one["metadata"]["name"])
    node.send(pod("wide", container(cpu=4, memory="600Mi")))
    node.send(pod("half-core", container(cpu=1, memory="32Mi")))
    node.send(pod("two", container("one", cpu=2, memory="64Mi"), container("two", cpu="500m", memory="64Mi")))
    for name in ("wide", "two"):
        node.end(name)
    node.send(pod("again", container(cpu=2, memory="64Mi", gpu=2)))
    node.end("again")
    node.restart_kubelet(
        kubelet_config(cpuManagerPolicy="none", topologyManagerPolicy="restricted"), remove=["cpu_manager_state"]
    )
    node.check("CPU manager none")
    node.send(pod("unpinned", container(cpu=3, memory="500Mi")))
    node.send(pod("small", container(cpu=1, memory="100Mi")))
