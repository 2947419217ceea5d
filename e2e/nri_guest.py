"""A node of a real cluster with ``alignup nri`` beside its kubelet, and what its containers may use at every moment."""

import signal
from dataclasses import dataclass, field
from typing import Any

from alignup.align import bits
from e2e.api import Document, until
from e2e.cluster_bed import ClusterBed
from e2e.guest_kubelet import RUNTIME
from e2e.observed_node import NO_SCHEDULER, ObservedNode

NODE, PLUGIN = "node-a", "nri"
CPUS = [bits.parse(f"{2 * node}-{2 * node + 1}") for node in range(4)]  #: by NUMA node
MOST_PODS = 7
_SYNCHRONIZED = "synchronized with the runtime"


@dataclass
class NriGuest:
    """The only node of *bed*, with a plugin that has these *options*."""

    bed: ClusterBed
    options: tuple[str, ...]
    kinds: dict[str, str] = field(default_factory=dict)  #: pod → shared or exclusive
    number: int = 0  #: of pods, so far
    checks: int = 0

    @property
    def node(self) -> ObservedNode:
        return self.bed.nodes[NODE]

    def start_plugin(self) -> None:
        words = ["nri", "--socket", str(RUNTIME / "nri.sock"), *self.options]
        count = self.synchronizations()
        self.node.guest.ask("start_alignup", name=PLUGIN, words=words)
        self.wait_synchronized(count)

    def kill_plugin(self) -> None:
        self.node.guest.ask("stop_process", name=PLUGIN, number=signal.SIGKILL)

    def restart_runtime(self) -> None:
        count = self.synchronizations()
        self.node.guest.ask("restart_runtime")
        self.wait_synchronized(count)

    def synchronizations(self) -> int:
        return self.log().count(_SYNCHRONIZED)

    def wait_synchronized(self, before: int) -> None:
        until("the plugin is synchronized", lambda: self.synchronizations() > before, detail=self.log)

    def log(self) -> str:
        text: str = self.node.guest.ask("log", name=PLUGIN, characters=1 << 20)
        return text

    def logs(self) -> str:
        runtime = self.node.guest.ask("log", name="containerd")
        return f"{self.node.logs()}\n--- nri\n{self.log()[-3000:]}\n--- containerd\n{runtime[-3000:]}"

    def create(self, kind: str, pod: Document) -> str:
        """Create a pod on the node under a name of its own; return the name."""
        self.number += 1
        name = pod["metadata"]["name"] = f"{kind}-{self.number}"
        self.bed.api.create(pod)
        if pod["spec"]["schedulerName"] == NO_SCHEDULER:
            self.bed.api.bind(name, NODE)
        self.kinds[name] = kind
        return name

    def remove(self, name: str) -> None:
        self.bed.api.delete(name, self.logs)
        del self.kinds[name]

    def remove_all(self) -> None:
        for name in list(self.kinds):
            self.remove(name)

    def by_pod(self, answers: dict[str, Any]) -> dict[str, Any]:
        """Return what the guest answers for each container, by pod."""
        by_pod = {}
        for pod in self.node.pods():
            for status in pod["status"].get("containerStatuses", ()):
                id_ = status.get("containerID", "").removeprefix("containerd://")
                if id_ in answers:
                    by_pod[pod["metadata"]["name"]] = answers[id_]
        return by_pod

    def sets(self) -> dict[str, tuple[int, int]]:
        """Return the CPUs and memory nodes that the container of each running pod may use now."""
        sets = self.by_pod(self.node.guest.ask("container_sets"))
        return {name: (bits.parse(cpus), bits.parse(nodes)) for name, (cpus, nodes) in sets.items()}

    def overlaps(self) -> list[str]:
        """Return the containers that have a CPU which another one holds exclusively, or no CPU at all."""
        sets = self.sets()
        return [f"{name} may use no CPU: {sets}" for name, (cpus, _) in sets.items() if not cpus] + [
            f"{other} may use CPUs of {name}: {sets}"
            for name, (cpus, _) in sets.items()
            for other, (other_cpus, _) in sets.items()
            if self.kinds.get(name) == "exclusive" and other != name and cpus & other_cpus
        ]

    def check(self) -> None:
        """Check that no container has a CPU that another one holds exclusively."""
        self.checks += 1
        assert self.overlaps() == [], self.logs()
