"""Observers of simulated nodes that carry out SteeringInstructions, as far as a script says so."""

from dataclasses import replace

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.machine import Device
from alignup.align.workload import Pod
from alignup.align.workload.names import MARKER
from alignup.documents.steering import SteeringInstruction, SteeringSpec
from alignup.kubernetes.api import ApiClient, Change, EventType, Informer
from alignup.kubernetes.api.steering_instructions import STEERING_INSTRUCTIONS
from alignup.kubernetes.manifests.pod_decoder import read_pod
from alignup.placement.steered import with_markers
from alignup.testing.simulated_kubelet import DEVICES
from tests.observe.kubelets import ObservedKubelet
from tests.schedule.nodes import SimulatedNodes

MARKERS = tuple(Device(MARKER, f"numa-{node}-{number}", nodes=1 << node) for node in (0, 1) for number in range(8))


def marked(pod: Pod) -> Pod:
    made = with_markers(pod)
    assert made is not None
    return made


def add_marked_node(nodes: SimulatedNodes, name: str) -> ObservedKubelet:
    """Add a node with 8 markers on each of its NUMA nodes, or give them to one that has none.

    Its observer has created its SteeringInstruction.
    """
    nodes.kubelets[name] = kubelet = ObservedKubelet(devices=(*DEVICES, *MARKERS))
    if name not in {each["metadata"]["name"] for each in nodes.server.objects("nodes")}:
        nodes.add(name)
        nodes.kubelets[name] = kubelet
    nodes.report(name)
    kind = {"apiVersion": STEERING_INSTRUCTIONS.api_version, "kind": STEERING_INSTRUCTIONS.kind}
    nodes.server.put({**kind, "metadata": {"name": name}})
    return kubelet


class ScriptedObserver:
    """The observers of all nodes: *answer* is the phase that they report, or nothing."""

    def __init__(self, nodes: SimulatedNodes, client: ApiClient, answer: str = "Ready") -> None:
        self.nodes, self.answer = nodes, answer
        self.specs: list[tuple[str, str, str]] = []  #: node, pod and NUMA nodes of each instruction that was seen
        self.withdrawn: dict[str, NodeSet] = {}  #: by node
        self._client = client
        self._informer = Informer(client, STEERING_INSTRUCTIONS)
        self._informer.subscribe(self._changed)
        self.run = self._informer.run

    def _changed(self, change: Change[SteeringInstruction]) -> None:
        instruction = change.object
        node, pod = instruction.metadata.name, instruction.spec.pod
        if instruction.spec == (change.old.spec if change.old is not None else SteeringSpec()):
            return
        self.withdrawn.pop(node, None)
        if pod is None or change.type is EventType.DELETED:
            self.specs.append((node, "", ""))
            return
        self.specs.append((node, pod.name, instruction.spec.numa_nodes))
        if self.answer == "Ready":
            self.withdrawn[node] = bits.parse(instruction.spec.numa_nodes)
        if self.answer:
            self.report(node, self.answer)

    def report(self, node: str, phase: str) -> None:
        """Report a phase for the present generation."""
        server = self.nodes.server
        document = next(each for each in server.objects("steeringinstructions") if each["metadata"]["name"] == node)
        status = {"observedGeneration": document["metadata"]["generation"], "phase": phase}
        server.put({**document, "status": status})

    def admit(self, name: str) -> None:
        """Let the kubelet admit the next pod that is bound to it, with the markers that it has; restore them then."""
        kubelet, server = self.nodes.kubelets[name], self.nodes.server
        bound = [each for each in server.objects("pods") if each["spec"].get("nodeName") == name]
        document = next(each for each in bound if each["metadata"]["uid"] not in kubelet.pods)
        kubelet.run(replace(read_pod(document), uid=document["metadata"]["uid"]), self.withdrawn.get(name, 0))
        if self.withdrawn.pop(name, None) is not None:
            self.report(name, "Done")
        self.nodes.report(name)

    def numa_nodes(self, name: str, uid: str) -> NodeSet:
        return self.nodes.kubelets[name].numa_nodes(uid)
