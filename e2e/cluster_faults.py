"""Faults of a cluster while pods start and end: a plugin, a kubelet, our service or an observer is restarted.

Pods of 1 to 4 CPUs, every third with a device, come one after the other and end after a while.
"""

import random
import signal
import time
from collections.abc import Callable
from typing import Any

from e2e.api import PODS, until
from e2e.cluster_bed import ClusterBed
from e2e.cluster_guest import kubelet_config
from e2e.cluster_workloads import SEED, PodCounts, count_pods, create_pod
from e2e.observed_node import OBSERVER, ObservedNode, make_container
from e2e.schedule_replicas import ScheduleReplicas

GPU, NIC = "example.com/gpu", "example.com/nic"
DEVICES: dict[str, dict[str, list[int] | None]] = {
    GPU: {"gpu-0": [0], "gpu-1": [0], "gpu-2": [1], "gpu-3": [1]},
    NIC: {"nic-0": [0, 1], "nic-1": None},
}
PAUSE = 2.0  #: seconds between two pods, unless a fault takes longer


def start_plugins(node: ObservedNode) -> None:
    """Start the plugins of a node; they stay, because devices of a plugin that stopped are a problem of the node."""
    for resource, devices in DEVICES.items():
        node.guest.ask("start_plugin", resource=resource, devices=devices)
    node.check(f"plugins of {node.name}")


class FaultyCluster:
    """The nodes *first* and *second* of *bed*, which have plugins, and *service*."""

    def __init__(self, bed: ClusterBed, service: ScheduleReplicas, first: str, second: str) -> None:
        self.bed, self.service = bed, service
        self.first, self.second = bed.nodes[first], bed.nodes[second]

    def run(self, count: int) -> PodCounts:
        """Send *count* pods with all faults among them, wait until all have ended, and count them."""
        faults = self.faults()
        steps = {(number + 1) * count // (len(faults) + 1): fault for number, fault in enumerate(faults)}
        chance = random.Random(SEED)
        for number in range(count):
            if number in steps:
                steps[number]()
            cpus = chance.randint(1, 4)
            devices: dict[str, Any] = {} if number % 3 else {"gpu": 1}
            container = make_container(cpu=cpus, memory="32Mi", **devices)
            create_pod(self.bed.api, f"fault-{number}", {**container, "args": [str(chance.randint(8, 20))]})
            time.sleep(PAUSE)
        ended = lambda: not (counts := count_pods(self.bed.api)).running + counts.pending  # noqa: E731
        until("all pods have ended", ended, detail=self._detail)
        return count_pods(self.bed.api)

    def faults(self) -> list[Callable[[], None]]:
        return [
            self.restart_plugin,
            self.kill_kubelets,
            self.kill_service,
            self.kill_observer,
            self.delete_running_pods,
        ]

    def restart_plugin(self) -> None:
        self.first.guest.ask("stop_plugin", resource=GPU)
        self.first.guest.ask("start_plugin", resource=GPU, devices=DEVICES[GPU])

    def kill_kubelets(self) -> None:
        for node in (self.first, self.second):
            node.guest.ask("pause_kubelet")
            node.restart_kubelet(kubelet_config(), number=signal.SIGKILL)

    def kill_service(self) -> None:
        """Kill the leader, wait until the standby leads, and start another replica."""
        self.service.kill_leader()
        self.service.start()
        self.service.wait_leader()

    def kill_observer(self) -> None:
        self.second.guest.ask("stop_process", name=OBSERVER, number=signal.SIGKILL)
        create_pod(self.bed.api, "unobserved", {**make_container(cpu=2, memory="32Mi"), "args": ["10"]})
        time.sleep(PAUSE)
        self.second.start_observer()

    def delete_running_pods(self) -> None:
        """Delete the running pods, so that others take their place."""
        running = [pod for pod in self.bed.api.items(PODS) if pod["status"]["phase"] == "Running"]
        for pod in running:
            self.bed.api.request("DELETE", f"{PODS}/{pod['metadata']['name']}")

    def _detail(self) -> str:
        left = [pod for pod in self.bed.api.items(PODS) if pod["status"]["phase"] in {"Pending", "Running"}]
        shown = [f"{pod['metadata']['name']} on {pod['spec'].get('nodeName')}: {pod['status']}" for pod in left]
        return "\n".join([str(count_pods(self.bed.api)), *shown, self.bed.plane.log("alignup-schedule")])
