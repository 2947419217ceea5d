"""The observer and ``alignup cluster`` beside a real kubelet, on one node that goes through a script of changes."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from e2e import cluster_guest
from e2e.api import PODS
from e2e.cluster_bed import ClusterBed
from e2e.cluster_guest import NARROW, kubelet_config
from e2e.marks import needs
from e2e.observed_node import OBSERVER, ObservedNode, make_container, make_pod

pytestmark = needs(cluster_guest.missing())

NODE = "node-a"
SHAPE = replace(NARROW, hugepages={1: 16, 2: 8})
#: Plugins: devices on one NUMA node each; one near two NUMA nodes, and one without topology.
GPUS = {"gpu-0": [0], "gpu-1": [1], "gpu-2": [1], "gpu-3": [3]}
NICS = {"nic-0": [2, 3], "nic-1": None}
STOPPED = "the device plugin of example.com/nic has stopped"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedNode]:
    with ClusterBed(tmp_path_factory.mktemp("cluster"), {NODE: SHAPE}) as bed:
        observed = bed.nodes[NODE]
        observed.timings["start"] = bed.seconds
        yield observed
    for step, seconds in observed.timings.items():
        print(f"{seconds:6.1f} s  {step}")


def test_what_is_published_and_predicted_is_what_the_kubelet_does(node: ObservedNode) -> None:
    live(node)


def live(node: ObservedNode) -> None:
    """Take the node through everything that can happen to it."""
    node.check("idle")
    start_plugin(node, "gpu", GPUS)
    start_plugin(node, "nic", NICS)
    send_pods(node)
    end_pods(node)
    restart_programs(node)
    change_configuration(node)


def start_plugin(node: ObservedNode, name: str, devices: Mapping[str, list[int] | None]) -> None:
    node.guest.ask("start_plugin", resource=f"example.com/{name}", devices=devices)
    node.check(f"plugin {name}")


def send_pods(node: ObservedNode) -> None:
    """Of 1, 2, 2 and 2 CPUs on the NUMA nodes 0 to 3."""
    node.send(make_pod("shared", make_container(cpu="100m", memory="32Mi", requests={"cpu": "50m"})))
    node.send(make_pod("besteffort", make_container()))
    first = node.send(make_pod("first", make_container(cpu=2, memory="64Mi", gpu=1)))
    assert first["status"]["phase"] == "Running"
    refused = node.send(make_pod("too-wide", make_container(cpu=3, memory="32Mi")))
    assert refused["status"]["reason"] == "TopologyAffinityError"
    node.send(
        make_pod(
            "parts",
            make_container("one", cpu=1, memory="32Mi"),
            make_container("two", cpu="500m", memory="32Mi"),
            init=[
                {**make_container("prepare", cpu=1, memory="48Mi"), "command": ["true"]},
                {**make_container("beside", cpu=1, memory="16Mi"), "restartPolicy": "Always"},
            ],
        )
    )
    second = node.send(
        make_pod(
            "second-refused", make_container("one", cpu=1, memory="32Mi"), make_container("two", cpu=2, memory="32Mi")
        )
    )
    assert second["status"]["phase"] == "Failed"
    node.send(make_pod("pages", make_container(cpu=1, memory="32Mi", pages="8Mi", nic=1)))
    node.send(make_pod("no-room", make_container(cpu=6, memory="32Mi")))
    node.send(make_pod("after", make_container(cpu=1, memory="32Mi", gpu=1)))
    nodes = node.alignup("nodes")["nodes"]
    assert [described["node"] for described in nodes] == [NODE]
    assert not nodes[0]["problems"]


def end_pods(node: ObservedNode) -> None:
    node.end("first")
    node.send({**make_pod("short", {**make_container(cpu=1, memory="32Mi"), "command": ["true"]})})
    node.api.wait_phase("short", "Succeeded", detail=node.logs)
    node.check("pod short has ended")
    node.send(make_pod("third", make_container(cpu=2, memory="64Mi", gpu=2)))
    for name in ("parts", "pages"):
        node.end(name)
    node.send(make_pod("fourth", make_container(cpu=2, memory="300Mi")))


def restart_programs(node: ObservedNode) -> None:
    """Stop plugins, the kubelet and the observer, and start them again."""
    guest = node.guest
    guest.ask("health", resource="example.com/gpu", id_="gpu-3", health="Unhealthy")
    node.check("an unhealthy device")
    guest.ask("set_devices", resource="example.com/gpu", devices="1@0,2@1,1@3,1@2")
    node.check("other devices")
    guest.ask("stop_plugin", resource="example.com/nic")
    node.check("a plugin has stopped", problem=STOPPED)
    node.send(make_pod("no-nic", make_container(nic=1)), problem=STOPPED)
    node.restart_kubelet(kubelet_config())
    node.check("kubelet restarted")
    node.send(make_pod("still-no-nic", make_container(nic=1)))
    start_plugin(node, "nic", NICS)
    node.send(make_pod("fifth", make_container(cpu=1, memory="32Mi", gpu=1, nic=1)))
    node.restart_kubelet(kubelet_config(), number=9)
    node.check("kubelet killed")
    assert guest.ask("stop_process", name=OBSERVER) == 0
    node.api.request("POST", PODS, make_pod("unseen", make_container(cpu=1, memory="32Mi")))
    node.api.bind("unseen", NODE)
    node.api.wait_admitted("unseen", node.logs)
    node.start_observer()
    node.check("observer restarted")


def change_configuration(node: ObservedNode) -> None:
    """Other policies; without a state file where the kubelet requires that."""
    options = {"cpuManagerPolicyOptions": {"full-pcpus-only": "true"}}
    node.restart_kubelet(kubelet_config(topologyManagerPolicy="best-effort", topologyManagerScope="pod", **options))
    node.check("best-effort")
    for running in node.pods():
        if running["status"]["phase"] == "Running":
            node.end(running["metadata"]["name"])
    node.send(make_pod("wide", make_container(cpu=4, memory="600Mi")))
    node.send(make_pod("half-core", make_container(cpu=1, memory="32Mi")))
    node.send(
        make_pod("two", make_container("one", cpu=2, memory="64Mi"), make_container("two", cpu="500m", memory="64Mi"))
    )
    for name in ("wide", "two"):
        node.end(name)
    node.send(make_pod("again", make_container(cpu=2, memory="64Mi", gpu=2)))
    node.end("again")
    node.restart_kubelet(
        kubelet_config(cpuManagerPolicy="none", topologyManagerPolicy="restricted"), remove=["cpu_manager_state"]
    )
    node.check("CPU manager none")
    node.send(make_pod("unpinned", make_container(cpu=3, memory="500Mi")))
    node.send(make_pod("small", make_container(cpu=1, memory="100Mi")))
