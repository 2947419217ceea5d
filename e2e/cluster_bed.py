"""A whole cluster for tests: control plane, guests with kubelets, observers, and a scheduler with or without ours."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from e2e import cluster_guest, control_plane
from e2e.api import NODES, Api
from e2e.cluster_guest import ClusterGuest, kubelet_config
from e2e.control_plane import ControlPlane
from e2e.egress import EgressProxy
from e2e.guest import Shape
from e2e.observed_node import ObservedNode, install_observer, is_admitted, placement_difference
from e2e.schedule_replicas import ScheduleReplicas, extender_replicas, gate_replicas

PLACEMENT = "alignup.dev/predicted-placement"  #: the annotation of a pod that ``alignup schedule`` has bound


class ClusterBed:
    """A cluster whose nodes have the names and shapes of *nodes*; everything of it is in *place*.

    Observers run as processes of the guests. With *images*, archives by the names of container images, the nodes have
    these images, and no observers yet. *programs* is the directory of Kubernetes' programs; *files* are copied to paths
    of the nodes; *flags* are those of the API server, and *kubelet* has fields of the KubeletConfiguration that differ.
    *policies* are policies of the topology manager, by node, where it has another one.
    """

    def __init__(  # noqa: PLR0913 - optional ones by name
        self,
        place: Path,
        nodes: Mapping[str, Shape],
        *,
        images: Mapping[str, Path] | None = None,
        programs: Path | None = None,
        files: Mapping[str, Path] | None = None,
        kubelet: Mapping[str, object] | None = None,
        policies: Mapping[str, str] | None = None,
        flags: tuple[str, ...] = (),
    ) -> None:
        self._egress = EgressProxy()
        self.plane = ControlPlane(place, nodes=tuple(nodes), egress=self._egress, programs=programs, flags=flags)
        self.api = Api(self.plane)
        self.nodes: dict[str, ObservedNode] = {}
        self.seconds = 0.0  #: that the start took
        self._shapes = nodes
        self._images = images
        self._files = files or {}
        self._kubelet = kubelet or {}
        self._policies = policies or {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Start everything but the scheduler, and wait until pods can run and observers have published."""
        begun = time.monotonic()
        files = {**self._files, **{f"/{path.name}": path for path in (self._images or {}).values()}}
        with ExitStack() as stack:
            image = cluster_guest.image(self.plane.programs)
            stack.enter_context(self._egress)
            stack.enter_context(self.plane)
            for number, (name, shape) in enumerate(self._shapes.items(), start=2):
                guest = stack.enter_context(ClusterGuest(self.plane, name, shape, image, number=number, files=files))
                self.nodes[name] = ObservedNode(self.api, guest, self.plane.directory / "admin.kubeconfig")
            self.plane.kubeconfig(self.plane.directory / "admin.kubeconfig")
            self.plane.start_controllers()
            if self._images is None:
                install_observer(self.api)
            for node in self.nodes.values():
                node.guest.wait_booted()
                for name, path in (self._images or {}).items():
                    node.guest.ask("load_images", archive=f"/{path.name}", names=[name])
                node.guest.ask("start_kubelet", config=kubelet_config(**self._kubelet, **self._own_fields(node.name)))
            for node in self.nodes.values():
                node.wait_schedulable()
                if self._images is None:
                    node.install_observer()
            if self._images is None:
                self.check("start")
            self._stack = stack.pop_all()
        self.seconds = time.monotonic() - begun
        version = control_plane.version(self.plane.programs or control_plane.directories()[0])
        print(f"\nnodes with {version} ready after {self.seconds:.0f} s", flush=True)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _own_fields(self, name: str) -> dict[str, object]:
        return {"topologyManagerPolicy": self._policies[name]} if name in self._policies else {}

    def check(self, step: str) -> None:
        """Wait until all observers have published what their kubelets say."""
        for name, node in self.nodes.items():
            node.check(f"{step} on {name}")

    def use_nodes(self, *names: str) -> None:
        """Let schedulers use only these nodes."""
        for name in self.nodes:
            patch = {"spec": {"unschedulable": name not in names}}
            self.api.merge(f"{NODES}/{name}", patch)

    def mispredictions(self) -> list[str]:
        """Return pods that hold something else than ``alignup schedule`` predicted when it bound them."""
        mispredictions = []
        for node in self.nodes.values():
            kubelet = node.view()
            for pod in node.pods():
                text = pod["metadata"].get("annotations", {}).get(PLACEMENT)
                compared = text is not None and pod["metadata"]["uid"] in kubelet.stored and is_admitted(pod)
                difference = placement_difference(json.loads(text), pod, kubelet) if compared else ""
                mispredictions += [f"{pod['metadata']['name']} on {node.name}: {difference}"] if difference else []
        return mispredictions

    @contextmanager
    def extender(self, *options: str, replicas: int = 1) -> Iterator[ScheduleReplicas]:
        """Run ``alignup schedule`` with *options*, and a kube-scheduler that asks it."""
        with extender_replicas(self.plane, count=replicas, options=options) as running:
            yield running

    @contextmanager
    def gate(self, *options: str, replicas: int = 1) -> Iterator[ScheduleReplicas]:
        """Run ``alignup schedule --gate`` with *options*, and an unmodified kube-scheduler.

        New pods of the namespace get the gate.
        """
        with gate_replicas(self.plane, self.api, count=replicas, options=options) as running:
            yield running
