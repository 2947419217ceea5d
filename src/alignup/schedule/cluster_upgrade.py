"""An upgrade of the kubelets of a cluster: which do not start, and which pods they reject or place elsewhere."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from alignup.align.errors import AlignError
from alignup.align.host import Host
from alignup.align.release import Release
from alignup.align.restart import PodChange, UpgradeItem, UpgradeSeverity, compare_restarts, restart
from alignup.align.workload import Pod
from alignup.documents.host_state import HostStateObject
from alignup.documents.host_state.reader import HostStateReader, kubelet_release
from alignup.kubernetes.api import NODES, PODS, UNFINISHED_PODS, ApiClient
from alignup.kubernetes.api.host_states import HOST_STATES, host_state_reader, read_gates
from alignup.kubernetes.api.known_pods import bound_pod
from alignup.kubernetes.api.objects import ApiNode, ApiPod
from alignup.kubernetes.configuration import feature_gates
from alignup.kubernetes.kubelet_files.sub_ids import sub_id_problems

VERSION = 1  #: of the JSON document


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUpgrade:
    """What a kubelet of another release makes of a node."""

    node: str
    version: str  #: of the present kubelet
    unknown: str = ""  #: why the node cannot be checked
    refused: tuple[str, ...] = ()  #: why the new kubelet does not start
    warnings: tuple[str, ...] = ()
    pods: tuple[PodChange, ...] = ()  #: pods that run, then pods that wait
    checked: int = 0  #: running pods

    @property
    def safe(self) -> bool:
        waits = UpgradeSeverity.UNCHECKED
        return not (self.unknown or self.refused or any(change.severity < waits for change in self.pods))

    def items(self, release: Release) -> list[UpgradeItem]:
        """Return everything that happens, the worst first."""
        start = f"a kubelet {release} does not start: "
        correct = "correct it on the node before the upgrade"
        observe = "check the node with 'alignup upgrade-check' and its files"
        unchecked_items = [UpgradeItem(UpgradeSeverity.UNCHECKED, f"cannot be checked: {self.unknown}", observe)]
        return sorted(
            [
                *(UpgradeItem(UpgradeSeverity.NOT_STARTED, start + problem, correct) for problem in self.refused),
                *(change.item(release) for change in self.pods),
                *(unchecked_items if self.unknown else ()),
                *(UpgradeItem(UpgradeSeverity.WARNING, warning, correct) for warning in self.warnings),
            ],
            key=lambda item: item.severity,
        )

    def to_document(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "kubeletVersion": self.version,
            "safe": self.safe,
            "unknown": self.unknown,
            "refused": list(self.refused),
            "warnings": list(self.warnings),
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
    reader, states_by_node = host_state_reader(), {state.metadata.name: state for state in states}
    pods_by_node: dict[str, list[Pod]] = {}  #: node → its pods; pods of no node wait
    unreadable: dict[str, str] = {}  #: node → why one of its pods cannot be checked
    # The kubelet admits the oldest pods first when it starts.
    for pod in sorted(pods, key=lambda pod: pod.metadata.creation_timestamp or ""):
        decoded_pod, problem = bound_pod(pod)
        pods_by_node.setdefault(pod.spec.node_name, []).append(decoded_pod.pod)
        if problem:
            unreadable[pod.spec.node_name] = f"pod {pod.metadata.full_name} cannot be read: {problem}"
    for node in sorted(nodes, key=lambda node: node.metadata.name):
        name, version = node.metadata.name, node.status.node_info.kubelet_version
        state = states_by_node.get(name)
        if state is None or name in unreadable:
            yield NodeUpgrade(node=name, version=version, unknown=unreadable.get(name, "no HostState"))
        else:
            waiting_pods = {pod.request_key: pod for pod in pods_by_node.get("", ())}
            of_node = _NodePods(pods_by_node.get(name, []), list(waiting_pods.values()))
            yield _check_node(reader, state, of_node, version, release)


class _NodePods(NamedTuple):
    running: list[Pod]
    waiting: list[Pod]  #: of no node; one pod of all with the same requests


def _check_node(
    reader: HostStateReader, state: HostStateObject, pods: _NodePods, version: str, release: Release
) -> NodeUpgrade:
    name = state.metadata.name
    try:
        present = reader.read(state, kubelet_version=version)
        gates = read_gates(state)
    except AlignError as error:
        return NodeUpgrade(node=name, version=version, unknown=str(error))
    if kubelet_release(version) is release:
        return NodeUpgrade(node=name, version=version, checked=len(pods.running))
    problems = (*feature_gates.problems(gates, release), *sub_id_problems(state.sub_ids, release))
    upgrade = NodeUpgrade(
        node=name,
        version=version,
        refused=tuple(f"{problem.field}: {problem.message}" for problem in problems),
        warnings=tuple(problem.message for problem in feature_gates.expected_problems(gates, release)),
    )
    if upgrade.refused:
        return upgrade
    try:
        report = reader.read(state, kubelet_version=release.version)
        host = Host(report.machine, report.settings)
    except AlignError as error:
        return replace(upgrade, refused=(str(error),))
    present_restart = restart(Host(present.machine, present.settings), present.ledger, pods.running)
    changes = compare_restarts(present_restart, restart(host, report.ledger, pods.running), pods.waiting)
    return replace(upgrade, pods=changes, checked=len(pods.running))
