"""A snapshot of a cluster: its nodes, what their kubelets hold, and the pods that are bound to them.

Everything comes from the API server: nodes, pods, and the HostState objects of the observers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from alignup.align import bits
from alignup.align.devices.plugin_rules import PluginRule
from alignup.align.errors import AlignError
from alignup.align.host import Host, Settings
from alignup.align.release import Release
from alignup.align.workload import Pod
from alignup.align.workload.names import MARKER
from alignup.documents.host_state import HostStateObject, staleness
from alignup.kubernetes.api import NODES, PODS, UNFINISHED_PODS, ApiClient
from alignup.kubernetes.api.host_states import HOST_STATES, host_state_reader
from alignup.kubernetes.api.known_pods import api_pod_stage, binding_time, bound_pod, kubelet_uid, plain_pod
from alignup.kubernetes.api.objects import ApiNode, ApiPod
from alignup.placement.cluster import Cluster
from alignup.placement.free_capacity import measure_free_capacity
from alignup.placement.host_report import HostReport, PodStage
from alignup.schedule.cluster_claims import read_claims
from alignup.schedule.known_claims import KnownClaims
from alignup.schedule.node_selection import restrictions

NO_HOST_STATE = "no HostState"
_MAX_NAMED = 5  #: nodes in a note


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    nodes: Mapping[str, ApiNode]  #: by name
    cluster: Cluster  #: the hosts whose state is known
    reports: Mapping[str, HostReport] = field(default_factory=dict)  #: by node
    unknown: Mapping[str, str] = field(default_factory=dict)  #: node → why its state is unknown
    #: node → gaps and contradictions that its observer reports
    doubts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stale: Mapping[str, str] = field(default_factory=dict)  #: node → since when its observer has not reported
    notes: tuple[str, ...] = ()  #: objects that were left out, and how far the release of a kubelet is known
    claims: KnownClaims | None = None  #: ``None``: none were read
    #: called with a node, and what an answer about it raised, which makes only this answer unknown; ``None``: it raises
    failed: Callable[[str, Exception], object] | None = None


def present_host(cluster: Cluster, node: str) -> Host | None:
    """Return the host with its present ledger: its report, and the pods bound since; ``None``: it is unknown.

    Terminating pods hold their resources. The devices are in the ledger only.
    """
    record = cluster.record(node)
    ledgers = record.states().ledgers if record else ()
    return record.model.at(ledgers[0]) if record and ledgers else None


def incomplete_release(cluster: Cluster) -> Release | None:
    """Return the release of a kubelet that is not known as a whole, if there is one."""
    return next(iter(_incomplete_releases(cluster).values()), None)


def _incomplete_releases(cluster: Cluster) -> dict[str, Release]:
    """Return node → release, of the kubelets whose release is not known as a whole."""
    records = {host: record for host in cluster.hosts if (record := cluster.record(host))}
    releases = {host: record.model.settings.release for host, record in records.items()}
    return {host: release for host, release in releases.items() if release.caveat}


def name_nodes(nodes: Sequence[str]) -> str:
    """Return the first of *nodes*, and how many more there are."""
    more = f" and {len(nodes) - _MAX_NAMED} more" if len(nodes) > _MAX_NAMED else ""
    return f"{'node' if len(nodes) == 1 else 'nodes'} {', '.join(nodes[:_MAX_NAMED])}{more}"


async def read_cluster(
    client: ApiClient,
    *,
    with_claims: bool = False,
    kubelet_version: str = "",
    plugin_rules: Mapping[str, PluginRule] = MappingProxyType({}),
) -> ClusterView:
    """List everything; ``NotFoundError`` if the cluster has no HostState resource.

    With *kubelet_version*, kubelets decide as kubelets of that release do. *plugin_rules*: how device plugins choose.
    """
    nodes = await client.list(NODES)
    # Before the pods: a pod that a HostState has and the later list of pods has not, has ended.
    states = await client.list(HOST_STATES)
    pods = await client.list(PODS, UNFINISHED_PODS)
    nodes_by_name = {node.metadata.name: node for node in nodes.items}
    claims = await read_claims(client, nodes_by_name.get) if with_claims else None
    now = client.timing.time_of_day()
    return build_view(
        nodes.items,
        states.items,
        pods.items,
        now=now,
        claims=claims,
        kubelet_version=kubelet_version,
        plugin_rules=plugin_rules,
    )


def build_view(  # noqa: PLR0913 - four have defaults
    nodes: Iterable[ApiNode],
    states: Iterable[HostStateObject],
    pods: Iterable[ApiPod],
    *,
    now: float = 0.0,
    claims: KnownClaims | None = None,
    kubelet_version: str = "",
    plugin_rules: Mapping[str, PluginRule] = MappingProxyType({}),
) -> ClusterView:
    """Build a snapshot; *now* is in seconds since the epoch, *kubelet_version* instead of that of each node."""
    nodes_by_name = {node.metadata.name: node for node in nodes}
    cluster, reader = Cluster(), host_state_reader(plugin_rules)
    reports: dict[str, HostReport] = {}
    unknown_nodes = dict.fromkeys(nodes_by_name, NO_HOST_STATE)
    doubts: dict[str, tuple[str, ...]] = {}
    stale: dict[str, str] = {}
    notes = []
    for state in states:
        name = state.metadata.name
        if name not in nodes_by_name:
            notes.append(f"HostState {name} is left out: there is no such node")
            continue
        try:
            version = kubelet_version or nodes_by_name[name].status.node_info.kubelet_version
            reports[name] = report = reader.read(state, kubelet_version=version)
        except AlignError as error:
            unknown_nodes[name] = str(error)
        else:
            del unknown_nodes[name]
            cluster.confirm(report)
            doubts[name] = tuple(state.problems)
        if old := staleness(state, now):
            stale[name] = old
    cluster.relist(_bound_pods((pod for pod in pods if pod.spec.node_name in nodes_by_name), reports, notes))
    if incomplete := _incomplete_releases(cluster):
        release = next(iter(incomplete.values()))
        same = [host for host, other in incomplete.items() if other is release]
        notes.append(f"{name_nodes(sorted(same))}: Kubernetes {release.caveat}")
    return ClusterView(
        nodes=nodes_by_name,
        cluster=cluster,
        reports=reports,
        unknown=unknown_nodes,
        doubts={name: problems for name, problems in doubts.items() if problems},
        stale=stale,
        notes=tuple(notes),
        claims=claims,
    )


def view_of_reports(hosts: Iterable[tuple[ApiNode, HostReport]], notes: Iterable[str] = ()) -> ClusterView:
    """Return a view of hosts whose reports are complete: no pod is bound to them beside."""
    cluster = Cluster(max_unconfirmed=None)
    nodes, reports = {}, {}
    for node, report in hosts:
        nodes[report.host], reports[report.host] = node, report
        cluster.confirm(report)
    return ClusterView(nodes=nodes, cluster=cluster, reports=reports, notes=tuple(notes))


def _bound_pods(
    pods: Iterable[ApiPod], reports: Mapping[str, HostReport], notes: list[str]
) -> Iterator[tuple[Pod, str, PodStage]]:
    """Yield the pods with their nodes, in the order of their bindings as far as it is known.

    Most of them are in the report of their node, which says what they hold. Then their requests need not be read.
    """
    bound_pods = sorted(pods, key=binding_time)
    uids = {pod.metadata.uid for pod in bound_pods}
    for pod in bound_pods:
        host, uid = pod.spec.node_name, kubelet_uid(pod, uids)
        if host in reports and uid in reports[host].ledger.pods:
            yield plain_pod(pod, uid=uid), host, api_pod_stage(pod)
            continue
        decoded_pod, problem = bound_pod(pod, uid=uid)
        if problem:
            notes.append(f"node {host}: the requests of pod {pod.metadata.full_name} cannot be read: {problem}")
        yield decoded_pod.pod, host, decoded_pod.stage


# Summaries of nodes

Amounts = Mapping[str, int]  #: by resource; memory in bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSummary:
    node: str
    kubelet_version: str = ""
    restrictions: tuple[str, ...] = ()  #: unschedulable, and taints
    settings: Settings | None = None  #: ``None``: unknown
    pods: int = 0  #: that the kubelet has admitted, or will
    free: Mapping[int, Amounts] = field(default_factory=dict)  #: NUMA node → what containers can still get there
    largest: Amounts = field(default_factory=dict)  #: the largest request that a container gets on one NUMA node
    unknown: str = ""  #: why the state is unknown
    doubts: tuple[str, ...] = ()  #: gaps and contradictions that the observer reports
    stale: str = ""  #: since when the observer has not reported; empty: it has


def summarize(view: ClusterView, node: str) -> NodeSummary:
    """Return a node in brief: its policies, what is free on each NUMA node, and what still fits there."""
    api_node = view.nodes[node]
    host = present_host(view.cluster, node)
    report, record = view.reports.get(node), view.cluster.record(node)
    problem = record.states().problem if record else ""
    return NodeSummary(
        node=node,
        kubelet_version=api_node.status.node_info.kubelet_version,
        restrictions=restrictions(api_node),
        settings=report.settings if report else None,
        pods=len(host.ledger.pods) if host else 0,
        free=free_by_numa_node(host) if host else {},
        largest=measure_free_capacity(host).largest if host else {},
        unknown=view.unknown.get(node, problem),
        doubts=view.doubts.get(node, ()),
        stale=view.stale.get(node, ""),
    )


def free_by_numa_node(host: Host) -> dict[int, dict[str, int]]:
    """Return what is left on each NUMA node, devices of claims included; devices without topology are on none."""
    cpus, memory, devices = host.ledger.cpus, host.ledger.memory, host.ledger.devices
    claimed_counts = host.ledger.claims.count_by_node(host.ledger.pods) if host.ledger.claims else {}
    by_node: dict[int, dict[str, int]] = {}
    for node in bits.members(host.view.all_nodes):
        free = by_node[node] = {}
        if host.cpus.allocatable:
            free["cpu"] = cpus.free.get(node, 0)
        if node in memory.nodes:
            free |= {type_: table.free for type_, table in memory.nodes[node].tables.items()}
        for resource, inventory in sorted(devices.inventories.items()):
            here = inventory.on.get(node, 0) if inventory.placed and resource != MARKER else 0
            if here:
                free[resource] = (devices.free[resource] & here).bit_count()
        free |= {name: count for name, (_, count) in claimed_counts.get(node, {}).items()}
    return by_node
