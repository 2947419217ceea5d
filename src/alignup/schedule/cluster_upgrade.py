"""An upgrade of the kubelets of a cluster: which running pods the new ones reject, or place elsewhere."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from alignup.align.errors import AlignError
from alignup.align.host import Host
from alignup.align.release import Release
from alignup.align.restart import PodChange, compare_restarts, restart
from alignup.align.workload import Pod
from alignup.documents.host_state import HostStateObject
from alignup.documents.host_state.reader import HostStateReader, kubelet_release
from alignup.kubernetes.api import NODES, PODS, UNFINISHED_PODS, ApiClient
from alignup.kubernetes.api.host_states import HOST_STATES, host_state_reader
from alignup.kubernetes.api.known_pods import bound_pod
from alignup.kubernetes.api.objects import ApiNode, ApiPod

VERSION = 1  #: of the JSON document


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUpgrade:
    """What a kubelet of another release makes of a node."""

    node: str
    version: str  #: of the present kubelet
    unknown: str = ""  #: why the node cannot be checked
    refused: str = ""  #: why the new kubelet does not start
    pods: tuple[PodChange, ...] = ()
    checked: int = 0  #: running pods

    @property
    def safe(self) -> bool:
        return not (self.unknown or self.refused or self.pods)

    def to_document(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "kubeletVersion": self.version,
            "safe": self.safe,
            "unknown": self.unknown,
            "refused": self.refused,
            "checkedPods": self.checked,
            "pods": [pod.to_document() for pod in self.pods],
        }


async def read_upgrades(client: ApiClient, release: Release) -> list[NodeUpgrade]:
    """Check every node of a cluster; ``NotFoundError`` if it has no HostState resource."""
    nodes = await client.list(NODES)
    states = await client.list(HOST_STATES)
    pods = await client.list(PODS, UNFINISHED_PODS)
    return list(check_nodes(nodes.items, states.items, pods.items, release))


def check_nodes(
    nodes: Iterable[ApiNode], states: Iterable[HostStateObject], pods: Iterable[ApiPod], release: Release
) -> Iterator[NodeUpgrade]:
    """Yield what kubelets of *release* make of the nodes, by name."""
    reader, known = host_state_reader(), {state.metadata.name: state for state in states}
    running: dict[str, list[Pod]] = {}
    unreadable: dict[str, str] = {}  #: node → why one of its pods cannot be checked
    # The kubelet admits the oldest pods first when it starts.
    for pod in sorted(pods, key=lambda pod: pod.metadata.creation_timestamp or ""):
        bound, problem = bound_pod(pod)
        running.setdefault(pod.spec.node_name, []).append(bound.pod)
        if problem:
            unreadable[pod.spec.node_name] = f"pod {pod.metadata.full_name} cannot be read: {problem}"
    for node in sorted(nodes, key=lambda node: node.metadata.name):
        name, version = node.metadata.name, node.status.node_info.kubelet_version
        state = known.get(name)
        if state is None or name in unreadable:
            yield NodeUpgrade(node=name, version=version, unknown=unreadable.get(name, "no HostState"))
        else:
            yield _check_node(reader, state, running.get(name, []), version, release)


def _check_node(
    reader: HostStateReader, state: HostStateObject, pods: list[Pod], version: str, release: Release
) -> NodeUpgrade:
    name = state.metadata.name
    try:
        present = reader.read(state, kubelet_version=version)
    except AlignError as error:
        return NodeUpgrade(node=name, version=version, unknown=str(error))
    if kubelet_release(version) is release:
        return NodeUpgrade(node=name, version=version, checked=len(pods))
    try:
        report = reader.read(state, kubelet_version=release.version)
        host = Host(report.machine, report.settings)
    except AlignError as error:
        return NodeUpgrade(node=name, version=version, refused=str(error))
    before = restart(Host(present.machine, present.settings), present.ledger, pods)
    changes = compare_restarts(before, restart(host, report.ledger, pods))
    return NodeUpgrade(node=name, version=version, pods=changes, checked=len(pods))
