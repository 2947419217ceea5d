"""What the commands of ``alignup cluster`` read from the API server."""

from collections.abc import Coroutine, Sequence
from typing import Any

from alignup.align.release import Release
from alignup.cli.cluster import PodOptions
from alignup.cli.cluster_access import ClusterError
from alignup.cli.cluster_client import CHOOSE_NAMESPACE, Answer, find_pods
from alignup.cli.inputs import parse_plugin_rules
from alignup.cli.object_names import ObjectName, parse_object_names
from alignup.documents import codec
from alignup.kubernetes.api import WORKLOADS, ApiClient
from alignup.kubernetes.api.errors import NotFoundError
from alignup.kubernetes.api.host_states import HOST_STATES
from alignup.kubernetes.api.objects import ApiPod
from alignup.kubernetes.manifests.workloads import Workload, read_workloads
from alignup.schedule import cluster_upgrade
from alignup.schedule.cluster_plan import PlanFacts, read_plan_facts
from alignup.schedule.cluster_snapshot import ClusterView, read_cluster
from alignup.schedule.cluster_upgrade import NodeUpgrade
from alignup.schedule.object_events import read_reports

_INSTALL = "Install the observers of the nodes with kubectl apply -k deploy/kubernetes, or with Helm: deploy/README.md"

_MAX_REPORTED = 50  #: pods whose events are read, with a request each


async def read_question(
    client: ApiClient, namespace: str, *, words: Sequence[str], options: PodOptions
) -> tuple[ClusterView, list[tuple[ApiPod, tuple[str, ...]]], list[Workload]]:
    """Return the cluster, and the pods and workloads that are asked about; pods with what was reported about them."""
    names = parse_object_names(words, "" if options.all_namespaces else options.namespace or namespace)
    workloads = [work for name in names if name.kind != "Pod" for work in await _find_workload(client, name)]
    selected_pods = await find_pods(client, [name for name in names if name.kind == "Pod"], options, namespace)
    waiting_uids = [pod.metadata.uid for pod in selected_pods if not pod.spec.node_name][:_MAX_REPORTED]
    pods = [(pod, await read_reports(client, pod) if pod.metadata.uid in waiting_uids else ()) for pod in selected_pods]
    view = await _with_host_states(
        read_cluster(
            client,
            with_claims=True,
            kubelet_version=options.kubernetes_version or "",
            plugin_rules=parse_plugin_rules(options.plugin_rules),
        )
    )
    return view, pods, workloads


async def read_plan_question(
    client: ApiClient, namespace: str, *, words: Sequence[str], options: PodOptions
) -> tuple[ClusterView, PlanFacts, list[ApiPod], list[Workload]]:
    """Return the cluster, who may be evicted, and the pods and workloads that need room."""
    view, pods, workloads = await read_question(client, namespace, words=words, options=options)
    return view, await read_plan_facts(client), [pod for pod, _ in pods], workloads


async def _find_workload(client: ApiClient, name: ObjectName) -> tuple[Workload, ...]:
    resource = WORKLOADS[name.kind]
    workload = await client.find(resource.at(name.name, namespace=name.namespace))
    if workload is None:
        message = f"{name.kind.lower()} {name.name} not found in namespace {name.namespace}"
        raise ClusterError(message, advice=CHOOSE_NAMESPACE)
    metadata = {"name": name.name, "namespace": name.namespace}
    document = {"apiVersion": resource.api_version, "kind": name.kind, "metadata": metadata, "spec": workload.spec}
    text = codec.encode(document)
    return read_workloads(text, name=f"{name.kind} {name.name}", ignore_unknown_fields=True).workloads


async def read_view(client: ApiClient, _namespace: str) -> ClusterView:
    return await _with_host_states(read_cluster(client))


async def read_upgrades(client: ApiClient, _namespace: str, *, release: Release) -> list[NodeUpgrade]:
    return await _with_host_states(cluster_upgrade.read_upgrades(client, release))


async def _with_host_states(read: Coroutine[Any, Any, Answer]) -> Answer:
    try:
        return await read
    except NotFoundError as error:
        raise ClusterError(f"the cluster has no resource {HOST_STATES.full_name}", advice=_INSTALL) from error
