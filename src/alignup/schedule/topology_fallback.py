"""Nodes without HostState, but with a NodeResourceTopology that another exporter publishes.

An object does not tell which pods it counts. Its fingerprint does, if there is one: when it is that of the pods bound
to the node, everything is in it. Until then, or without a fingerprint until the second object after a pod runs, the pod
counts on every NUMA node.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from alignup.align.errors import QuantityError
from alignup.align.workload import Pod
from alignup.kubernetes.api.objects import ApiPod, NodeResourceTopology
from alignup.kubernetes.api.pod_fingerprint import pod_fingerprint
from alignup.kubernetes.api.pods import api_pod_stage
from alignup.placement.host_report import PodStage
from alignup.placement.verdict import Verdict
from alignup.schedule.alignment_need import needs_alignment
from alignup.schedule.topology_zones import Requests, TopologyZones, charge, read_zones, zones_verdict

_FINGERPRINT, _METHOD = "nodeTopologyPodsFingerprint", "nodeTopologyPodsFingerprintMethod"
_ANNOTATION = "topology.node.k8s.io/fingerprint"
_EXCLUSIVE = "with-exclusive-resources"

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Charge:
    requests: Requests
    running: bool  #: whether the pod ran when the last object came


@dataclass(slots=True)
class _Node:
    zones: TopologyZones
    fingerprint: str
    charges: dict[str, _Charge] = field(default_factory=dict)  #: by uid


class TopologyFallback:
    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}

    @property
    def nodes(self) -> Iterable[str]:
        return self._nodes

    def update(self, name: str, topology: NodeResourceTopology | None, pods: Iterable[tuple[ApiPod, Pod]]) -> None:
        """A NodeResourceTopology was written, or is gone; *pods* are bound to the node, and read."""
        before = self._nodes.pop(name, None)
        if topology is None:
            return
        try:
            zones = read_zones(topology)
        except QuantityError as error:
            _log.warning("node=%s problem=unreadable NodeResourceTopology: %s", name, error)
            return
        annotated = topology.metadata.annotations.get(_ANNOTATION, "")
        node = self._nodes[name] = _Node(zones, zones.attributes.get(_FINGERPRINT, annotated))
        alive = [(api, pod) for api, pod in pods if api_pod_stage(api) is not PodStage.ENDED]
        if node.fingerprint:
            if not self._counts(node, alive):
                node.charges = before.charges if before else {}
                for api, pod in alive if before is None else ():
                    self._charge(node, pod, running=api.status.phase == "Running")
            return
        known = before.charges if before else {}
        for api, pod in alive:
            started = api.status.phase == "Running"
            if not started or (pod.uid in known and not known[pod.uid].running):
                self._charge(node, pod, running=started)

    def bound(self, name: str, api_pod: ApiPod, pod: Pod) -> None:
        """A pod was bound to a node, or has ended."""
        node = self._nodes.get(name)
        if node is None:
            return
        if api_pod_stage(api_pod) is PodStage.ENDED:
            node.charges.pop(pod.uid, None)
        else:
            self._charge(node, pod, running=False)

    def assume(self, name: str, pod: Pod) -> None:
        if name in self._nodes:
            self._charge(self._nodes[name], pod, running=False)

    def forget(self, uid: str) -> None:
        for node in self._nodes.values():
            node.charges.pop(uid, None)

    def verdict(self, name: str, pod: Pod) -> Verdict | None:
        """The verdict of a node; ``None`` if nothing is known about it."""
        node = self._nodes.get(name)
        if node is None:
            return None
        others = [own.requests for uid, own in node.charges.items() if uid != pod.uid]
        return zones_verdict(node.zones, pod, others)

    def _charge(self, node: _Node, pod: Pod, *, running: bool) -> None:
        node.charges[pod.uid] = _Charge(charge(pod, node.zones.resources), running)

    def _counts(self, node: _Node, pods: list[tuple[ApiPod, Pod]]) -> bool:
        """Whether the object counts exactly these pods."""
        exclusive = node.zones.attributes.get(_METHOD) == _EXCLUSIVE
        counted = [pod for _, pod in pods if not exclusive or needs_alignment(pod)]
        return node.fingerprint == pod_fingerprint((pod.namespace, pod.name) for pod in counted)
