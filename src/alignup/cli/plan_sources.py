"""What ``alignup cluster plan`` is asked, and where it finds the cluster.

That is an API server, archives of ``alignup collect``, or a simulation.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import click

from alignup.align.workload import Pod
from alignup.cli import cluster_client, cluster_reading, collected, inputs, simulate_output, terminal
from alignup.cli.app import InputError
from alignup.cli.cluster import PlanSource, PodOptions
from alignup.cli.cluster_access import AccessOptions
from alignup.cli.object_names import parse_object_names
from alignup.cli.options import PredictedHostOptions, build_options
from alignup.cli.simulate import SimulateOptions
from alignup.collect.collection import Collection, Part
from alignup.documents import codec
from alignup.kubernetes.api.objects import (
    ApiNode,
    ApiNodeSpec,
    ApiPod,
    ApiPodSpec,
    NodeAffinity,
    ObjectMeta,
    PodAffinity,
)
from alignup.kubernetes.api.pods_with_volumes import PodWithVolumes
from alignup.kubernetes.manifests.disruption import EXEMPT, EvictionRules
from alignup.kubernetes.manifests.node_selectors import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from alignup.kubernetes.manifests.pod_decoder import ObjectPart
from alignup.kubernetes.manifests.workloads import Workload
from alignup.picture.text_format import pluralize
from alignup.placement.host_report import HostReport
from alignup.placement.moves import RunningPod
from alignup.placement.victims import DisruptionBudget
from alignup.schedule.cluster_plan import EvictionFacts, PlanFacts
from alignup.schedule.cluster_snapshot import ClusterView, view_of_reports
from alignup.schedule.pod_groups import KUBERNETES, group_of
from alignup.simulate.arrivals import PodSubmission

PERMISSIONS = (
    "Alignup lists nodes, hoststates.alignup.dev, poddisruptionbudgets.policy, and the pods of all namespaces; and "
    "where they may be evicted, jobs.batch, persistentvolumes and persistentvolumeclaims."
)

WaitingPods = tuple[str, list[tuple[Pod, ApiPodSpec]]]  #: what waits, in words, and its pods


class PlanQuestion(NamedTuple):
    """A cluster, and what needs room there."""

    view: ClusterView
    facts: EvictionFacts
    limits: str  #: what is not known about the cluster, as a sentence; empty: nothing
    workloads: tuple[Workload, ...] = ()
    pods: tuple[ApiPod, ...] = ()  #: of the API server
    waiting: tuple[WaitingPods, ...] = ()  #: of a simulation, or pods that a Plan object makes room for
    short_name: str = "defragment"  #: begins the name of the Plan object


def read_question(
    source: PlanSource, access: AccessOptions, options: PodOptions, names: Sequence[str], files: tuple[str, ...]
) -> PlanQuestion:
    """Return the question about pods with *names*, or about the workloads in *files*."""
    workloads, skip_notes = inputs.read_workloads(files) if files else ((), ())
    if files:
        workloads = tuple(inputs.select_workloads(workloads, files=files))
    if source.given:
        if options.selects:
            raise click.UsageError("-A and -l select pods of a live cluster.")
        question = _read_archives(source, options) if source.archives else _simulate(source, options)
        chosen_question = question._replace(pods=(), waiting=()) if files else _choose(question, source, names, options)
        terminal.print_notes(dict.fromkeys((*skip_notes, *question.view.notes)))
        return chosen_question._replace(workloads=workloads)
    with cluster_client.api_errors(PERMISSIONS), terminal.waiting_message("Reading the cluster"):
        view, facts, pods, stored_workloads = cluster_client.ask(
            access, partial(cluster_reading.read_plan_question, words=names, options=options)
        )
    terminal.print_notes(dict.fromkeys((*skip_notes, *view.notes, *facts.notes)))
    return PlanQuestion(view, facts, "", (*workloads, *stored_workloads), tuple(pods))


def _choose(question: PlanQuestion, source: PlanSource, names: Sequence[str], options: PodOptions) -> PlanQuestion:
    """Return the question about pods with *names*; without any, all that are known to wait."""
    object_names = parse_object_names(names, options.namespace or "")
    if any(name.kind != "Pod" for name in object_names):
        raise click.UsageError("Name a pod; for a workload, give its manifest with -f.")
    keys = {(name.namespace, name.name) for name in object_names}
    pods, waiting_pods = question.pods, question.waiting
    if keys:
        pods = tuple([pod for pod in pods if _is_named(pod.metadata.namespace, pod.metadata.name, keys)])
        waiting_pods = tuple(
            [entry for entry in waiting_pods if any(_is_named(pod.namespace, pod.name, keys) for pod, _ in entry[1])]
        )
    if not pods and not waiting_pods:
        problem = f"pod {', '.join(names)} does not wait" if names else "no pod waits"
        area = "in the archives" if source.archives else "at peak demand"
        raise InputError(f"{problem} {area}", advice="Give the manifest of the pods with -f FILE.")
    return question._replace(pods=pods, waiting=waiting_pods)


def _is_named(namespace: str, name: str, keys: Iterable[tuple[str, str]]) -> bool:
    return any(pod == name and space in ("", namespace) for space, pod in keys)


def _host_options(options: PodOptions) -> PredictedHostOptions:
    return build_options(
        PredictedHostOptions, kubernetes_version=options.kubernetes_version, plugin_rules=options.plugin_rules
    )


# Archives


class _PodList(ObjectPart, frozen=True):
    items: tuple[PodWithVolumes, ...] = ()


def _read_archives(source: PlanSource, options: PodOptions) -> PlanQuestion:
    newest: dict[str, tuple[Collection, str, HostReport]] = {}
    pods: dict[str, PodWithVolumes] = {}
    asked_pods: dict[str, PodWithVolumes] = {}
    notes: list[str] = []
    host_options = _host_options(options)
    for file in source.archives:
        with collected.unpacked(host_options, file) as archive:
            node = inputs.read_host(archive.options, kubelet_faults=True)
            collection = archive.collection
        notes += collected.describe(collection, file)
        name = collection.index.node
        pod = codec.decode(collection.parts[Part.POD], PodWithVolumes)
        asked_pods[pod.metadata.uid] = pod
        report = HostReport(
            host=name,
            machine=node.host.machine,
            settings=node.host.settings,
            ledger=node.host.ledger,
            sequence=1,
        )
        if name in newest:
            older = min((collection, file), newest[name][:2], key=lambda entry: entry[0].index.collected_at)
            notes.append(f"{older[1]}: an archive of node {name} that was collected later counts instead")
        if name not in newest or newest[name][0].index.collected_at < collection.index.collected_at:
            newest[name] = collection, file, report
    nodes = []
    for name, (collection, _, report) in newest.items():
        nodes.append((_node(name, collection), report))
        for pod in codec.decode(collection.parts.get(Part.PODS, b"{}"), _PodList).items:
            pods[pod.metadata.uid] = pod
    facts = PlanFacts(
        pods=list(({**asked_pods, **pods}).values()),
        whole_groups={
            (key.namespace, key.name) for pod in pods.values() if (key := group_of(pod)) and key.source == KUBERNETES
        },
    )
    limits = (
        f"Only {pluralize(len(nodes), 'node')} of archives {'is' if len(nodes) == 1 else 'are'} known; other nodes, "
        "PodDisruptionBudgets, Jobs and volumes of claims are not."
    )
    return PlanQuestion(view_of_reports(nodes, notes), facts, limits, pods=tuple(asked_pods.values()))


def _node(name: str, collection: Collection) -> ApiNode:
    if Part.NODE in collection.parts:
        return codec.decode(collection.parts[Part.NODE], ApiNode)
    return ApiNode(metadata=ObjectMeta(name=name))


# Simulated clusters


@dataclass(frozen=True, slots=True)
class _SimulatedFacts:
    """Who may be evicted in a simulation: every pod without claims is created again."""

    pods: tuple[RunningPod, ...]
    budgets: Sequence[DisruptionBudget] = ()

    def running(self, _view: ClusterView, rules: EvictionRules, *, priority: int) -> Iterable[RunningPod]:
        for run in self.pods:
            exempt = EXEMPT if run.pod.namespace in rules.exempt else ""
            preemptible = rules.allow_preemption and (run.pod.priority or 0) < priority
            yield replace(run, protected=run.protected or exempt, preemptible=preemptible)


def _simulate(source: PlanSource, options: PodOptions) -> PlanQuestion:
    values = {"cluster": source.cluster, "trace": source.trace, "strategy": source.strategy, "stay": source.stay}
    simulation = simulate_output.simulate_once(_host_options(options), build_options(SimulateOptions, **values))
    peak = simulation.peak
    nodes = [
        (ApiNode(metadata=ObjectMeta(name=host.name, labels=dict(host.labels)), spec=ApiNodeSpec()), report)
        for host, report in zip(peak.hosts, peak.reports(), strict=True)
    ]
    facts = _SimulatedFacts(tuple(peak.running(run.submission for run in simulation.runs)))
    waiting_units = tuple([_waiting(unit) for unit in peak.waiting])
    limits = "This is a simulated cluster at peak demand, where every pod without claims is created again."
    return PlanQuestion(view_of_reports(nodes), facts, limits, waiting=waiting_units)


def _waiting(unit: tuple[PodSubmission, ...]) -> WaitingPods:
    first = unit[0].pod
    name = f"gang {unit[0].gang}" if len(unit) > 1 else f"pod {first.namespace}/{first.name}"
    return name, [(submission.pod, _selection(submission)) for submission in unit]


def _selection(submission: PodSubmission) -> ApiPodSpec:
    """Return what a scheduler reads of a pod that may run on some nodes only."""
    if not submission.selector:
        return ApiPodSpec()
    expressions = tuple(
        [NodeSelectorRequirement(label, "In", tuple(values)) for label, values in submission.selector.items()]
    )
    selector = NodeSelector(node_selector_terms=(NodeSelectorTerm(match_expressions=expressions),))
    return ApiPodSpec(affinity=PodAffinity(node_affinity=NodeAffinity(required=selector)))
