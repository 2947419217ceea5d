"""A whole cluster for tests: control plane, guests with kubelets, observers, and a scheduler with or without ours."""
# ruff: noqa: S603

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.request import urlopen

from e2e import cluster_guest
from e2e.api import NODES, Api, until
from e2e.cluster_guest import ClusterGuest, kubelet_config
from e2e.control_plane import ControlPlane, extenders, free_ports
from e2e.guest import Shape
from e2e.observed_node import ObservedNode, install_observer, is_admitted, placement_difference

Document = dict[str, Any]

PLACEMENT = "alignup.dev/predicted-placement"  #: the annotation of a pod that ``alignup schedule`` has bound


class ClusterBed:
    """A cluster whose nodes have the names and shapes of *nodes*; everything of it is in *place*."""

    def __init__(self, place: Path, nodes: Mapping[str, Shape]) -> None:
        self.plane = ControlPlane(place, nodes=tuple(nodes))
        self.api = Api(self.plane)
        self.nodes: dict[str, ObservedNode] = {}
        self.seconds = 0.0  #: that the start took
        self._shapes = nodes
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Start everything but the scheduler, and wait until pods can run and observers have published."""
        begun = time.monotonic()
        with ExitStack() as stack:
            image = cluster_guest.image()
            stack.enter_context(self.plane)
            for number, (name, shape) in enumerate(self._shapes.items(), start=2):
                guest = stack.enter_context(ClusterGuest(self.plane, name, shape, image, number=number))
                self.nodes[name] = ObservedNode(self.api, guest, self.plane.directory / "admin.kubeconfig")
            self.plane.kubeconfig(self.plane.directory / "admin.kubeconfig")
            self.plane.start_controllers()
            install_observer(self.api)
            for node in self.nodes.values():
                node.guest.wait_booted()
                node.guest.ask("start_kubelet", config=kubelet_config())
            for node in self.nodes.values():
                node.install()
            self._stack = stack.pop_all()
        self.seconds = time.monotonic() - begun
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def check(self, step: str) -> None:
        """Wait until all observers have published what their kubelets say."""
        for name, node in self.nodes.items():
            node.check(f"{step} on {name}")

    def use_nodes(self, *names: str) -> None:
        """Let schedulers use only these nodes."""
        for name in self.nodes:
            patch = {"spec": {"unschedulable": name not in names}}
            self.api.request("PATCH", f"{NODES}/{name}", patch, content="application/merge-patch+json")

    def mispredictions(self) -> list[str]:
        """Pods that hold something else than ``alignup schedule`` predicted when it bound them."""
        found = []
        for node in self.nodes.values():
            kubelet = node.view()
            for one in node.pods():
                text = one["metadata"].get("annotations", {}).get(PLACEMENT)
                compared = text is not None and one["metadata"]["uid"] in kubelet.stored and is_admitted(one)
                difference = placement_difference(json.loads(text), one, kubelet) if compared else ""
                found += [f"{one['metadata']['name']} on {node.name}: {difference}"] if difference else []
        return found

    @contextmanager
    def extender(self) -> Iterator[Callable[[], list[str]]]:
        """Run ``alignup schedule``, and a kube-scheduler that asks it; yield a function that reads its predictions."""
        port = free_ports(1)[0]
        access = self.plane.directory / "admin.kubeconfig"
        options = ("--kubeconfig", os.fspath(access), "--listen", f"127.0.0.1:{port}", "--no-leader-elect")
        with (self.plane.directory / "alignup-schedule.log").open("ab") as log:
            process = subprocess.Popen([sys.executable, "-m", "alignup", "schedule", *options], stdout=log, stderr=log)
        try:
            until(
                "alignup schedule is ready", lambda: _is_ready(port), detail=lambda: self.plane.log("alignup-schedule")
            )
            self.plane.start_scheduler({"percentageOfNodesToScore": 100, **extenders(port)})
            yield lambda: _metrics(port, "alignup_prediction_total")
        finally:
            process.terminate()
            process.wait()


def _metrics(port: int, name: str) -> list[str]:
    """The lines of one metric."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return [line for line in lines if line.startswith(f"{name}{{") and not line.endswith(" 0.0")]


def _is_ready(port: int) -> bool:
    with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10):
        return True
    return False
