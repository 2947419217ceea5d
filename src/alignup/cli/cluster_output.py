"""The output of ``alignup cluster``."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from alignup.align.explain import sentences
from alignup.align.release import Release
from alignup.align.workload import Pod
from alignup.align.workload.names import CPU, MEMORY, is_hugepages
from alignup.cli import inputs, terminal
from alignup.cli.app import Place
from alignup.cli.claims_output import claim_lines
from alignup.cli.layout import paragraph, print_table, section
from alignup.cli.upgrade_output import upgrade_lines
from alignup.kubernetes.api.known_pods import asked_pod
from alignup.kubernetes.api.objects import ApiPod, ApiPodSpec
from alignup.kubernetes.manifests.workloads import Workload
from alignup.picture.text_format import Cell, Line, pluralize
from alignup.placement.scheduling.claim_rules import claim_preference
from alignup.schedule import cluster_upgrade
from alignup.schedule.cluster_snapshot import NO_HOST_STATE, Amounts, ClusterView, NodeSummary, name_nodes
from alignup.schedule.cluster_upgrade import NodeUpgrade
from alignup.schedule.node_selection import scheduling_spec
from alignup.schedule.pod_answers import (
    AnswerGroup,
    NodeAnswer,
    NodeAnswerKind,
    PodAnswers,
    ask_nodes,
    ask_nodes_again,
    group_answers,
    search_remedies,
)
from alignup.schedule.rejections import rejection_text
from alignup.schedule.workload_answers import WorkloadAnswer, accept_for, ask_about_gang, split_by_object

VERSION = 1  #: of the JSON documents
GET_HOST_STATE = "its observer has not published it. Run 'alignup observe' there (docs/observe.md)"
_MIB = 1 << 20
_MAX_NODES = 20  #: names in the text of one group
_MAX_DOUBTS = 5  #: problems reported by observers that are printed


class AskedPod(NamedTuple):
    """A pod, what the nodes answered, and notes about it."""

    answers: PodAnswers
    notes: tuple[str, ...] = ()
    workload: WorkloadAnswer | None = None  #: about all pods of its object, with the first of its templates

    @property
    def admitted(self) -> bool:
        """Whether a node that is considered admits the pod, and all pods of the same object fit together."""
        return self.answers.count(NodeAnswerKind.ADMITS) > 0 and (self.workload is None or self.workload.fits)


def ask_about_workloads(view: ClusterView, workloads: Sequence[Workload], *, seconds: float) -> Iterator[AskedPod]:
    """Ask about one replica of each template, and about all pods of each object together."""
    with inputs.input_errors(Place()):
        accepted_workloads = accept_for(view.cluster, workloads)
    workloads = [replace(workload, pod=_with_class_resources(view, workload.pod)) for workload in accepted_workloads]
    for templates in split_by_object(workloads):
        questions = [_ask_about_template(view, template, seconds=seconds) for template in templates]
        considered_nodes = [question.answers.considered for question in questions]
        questions[0] = questions[0]._replace(workload=ask_about_gang(view.cluster, templates, considered_nodes))
        yield from questions


def _ask_about_template(view: ClusterView, workload: Workload, *, seconds: float) -> AskedPod:
    with inputs.input_errors(Place.at(workload.source)):
        spec = scheduling_spec(workload)
        notes = (*_gate_notes(spec), *_claim_notes(view, workload.pod))
        return AskedPod(ask_nodes(view, workload.pod, spec, seconds=seconds), notes)


def ask_about_pod(view: ClusterView, pod: ApiPod, *, seconds: float, reports: Sequence[str] = ()) -> AskedPod:
    """Ask about a pod of the cluster; a rejected pod is asked about as if it were created again.

    *reports*: what the cluster service says about the pod, such as which nodes are kept, and which moves would help.
    """
    with inputs.input_errors(Place(detail=f"in pod {pod.metadata.full_name}")):
        decoded_pod = _with_class_resources(view, asked_pod(pod))
        answers = search_remedies(
            group_answers(view, decoded_pod, ask_nodes_again(view, pod, decoded_pod)), seconds=seconds
        )
        notes = (*_state_notes(pod), *_gate_notes(pod.spec), *reports)
        notes += tuple(_claim_notes(view, decoded_pod))
        return AskedPod(answers, notes)


def _with_class_resources(view: ClusterView, pod: Pod) -> Pod:
    return pod if view.claims is None else view.claims.objects.with_class_resources(pod)


def _claim_notes(view: ClusterView, pod: Pod) -> Iterator[str]:
    """Yield what is wrong with claims and devices, if the pod has claims."""
    if view.claims is not None and pod.uses_claims:
        yield from view.claims.warnings
        yield from (f"{name} cannot be read: {problem}" for name, problem in view.claims.unreadable.items())
        if problem := claim_preference(pod)[1]:
            yield problem


def _state_notes(pod: ApiPod) -> Iterator[str]:
    host, status = pod.spec.node_name, pod.status
    if status.phase == "Failed":
        reason = rejection_text(pod) or ": ".join(filter(None, (status.reason, status.message)))
        yield f"The pod failed{host and ' on node '}{host}{reason and ': '}{reason}"
    elif host:
        yield f"The pod is bound to node {host}, where it keeps what it holds"


def doubt_notes(view: ClusterView) -> Iterator[str]:
    """Yield what the observers could not find out, for the first nodes."""
    lines = [f"node {node}: {problem}" for node, problem in sorted(view.stale.items())]
    lines += [f"node {node}: {problem}" for node, problems in sorted(view.doubts.items()) for problem in problems]
    yield from lines[:_MAX_DOUBTS]
    if len(lines) > _MAX_DOUBTS:
        yield f"{len(lines) - _MAX_DOUBTS} more problems of nodes ('alignup cluster nodes -o wide' lists them)"


def _gate_notes(spec: ApiPodSpec) -> tuple[str, ...]:
    gates = ", ".join(gate.name for gate in spec.scheduling_gates)
    return (f"No scheduler considers the pod before its scheduling gates are removed: {gates}",) if gates else ()


# Text


def print_answers(questions: Sequence[AskedPod]) -> None:
    lines: list[Line] = []
    for question in questions:
        lines += [(), (Cell("─" * terminal.width(), "frame"),), ()] if lines else []
        if gang := question.workload:
            lines += [*paragraph(gang.sentence, style="title" if gang.fits else "fail"), ()]
        answers = question.answers
        lines += paragraph(answers.verdict, style="title" if answers.count(NodeAnswerKind.ADMITS) else "fail")
        for note in question.notes:
            lines += paragraph(note)
        for group in answers.groups:
            lines += _group_lines(group)
    terminal.print_lines(lines)


def _group_lines(group: AnswerGroup) -> Iterator[Line]:
    first = group.first
    yield from section(f"{_TITLES[first.kind]}: {pluralize(len(group.answers), 'node')}")
    node_names = ", ".join(group.nodes[:_MAX_NODES])
    more = len(group.nodes) - _MAX_NODES
    yield from paragraph(node_names + (f" and {more} more (-o wide lists them)" if more > 0 else ""), prefix="  ")
    example = f" (on {first.node})" if len(group.answers) > 1 else ""
    if first.kind is NodeAnswerKind.ADMITS:
        yield from paragraph(f"{first.numa_nodes}", prefix="  ")
        yield from paragraph(f"{_placement(first)}{example}", prefix="  - ")
        if first.claims:
            yield from claim_lines(first.claims)
        return
    yield from paragraph(_reason(first), prefix="  ")
    if first.kind is NodeAnswerKind.NOT_CONSIDERED:
        yield from paragraph(f"{_kubelet_verdict(first)}{example}", prefix="  ", style="dim")
        return
    for misfit in group.misfits:
        yield from paragraph(f"{misfit}{example}", prefix="  - ")
    yield from _proposal_lines(group)


def _proposal_lines(group: AnswerGroup) -> Iterator[Line]:
    if title := group.remedies_title:
        yield from paragraph(title, prefix="  ")
    for change, result in group.changes:
        yield from paragraph(change, prefix="  - ")
        yield from paragraph(f"→ {result}", prefix="    ", style="dim")
    for sentence in group.remedies.unsearched:
        yield from paragraph(sentence, prefix="  ", style="dim")


_TITLES = {
    NodeAnswerKind.ADMITS: "Admitted",
    NodeAnswerKind.REJECTS: "Rejected",
    NodeAnswerKind.UNKNOWN: "Unknown",
    NodeAnswerKind.NOT_CONSIDERED: "Not considered",
}


def print_wide_answers(questions: Sequence[AskedPod]) -> None:
    """Print one line for each pod and node."""
    terminal.print_notes(question.workload.sentence for question in questions if question.workload)
    terminal.print_notes(note for question in questions for note in question.notes)
    heads = ("POD", "NODE", "KUBELET", "NUMA NODES", "NOT CONSIDERED", "PLACEMENT OR REASON")
    rows = [
        (
            f"{question.answers.pod.namespace}/{question.answers.pod.name}",
            answer.node,
            str(answer.verdict.kind),
            answer.numa_nodes or "-",
            "; ".join(answer.excluded) or "-",
            _placement(answer) or answer.verdict.detail or _missing_state(answer),
        )
        for question in questions
        for group in question.answers.groups
        for answer in group.answers
    ]
    if rows:
        print_table(heads, rows, wide=True)


def print_admitting_nodes(questions: Sequence[AskedPod]) -> None:
    """Print the nodes that admit each pod, as ``-o name``."""
    groups = (group for question in questions for group in question.answers.groups)
    for node in dict.fromkeys(
        node for group in groups if group.first.kind is NodeAnswerKind.ADMITS for node in group.nodes
    ):
        terminal.print_line(f"node/{node}")


def _placement(answer: NodeAnswer) -> str:
    return sentences.describe_allocations(answer.verdict.placements)


def _reason(answer: NodeAnswer) -> str:
    return answer.reason if answer.excluded else _missing_state(answer)


def _missing_state(answer: NodeAnswer) -> str:
    reason = answer.verdict.reason
    return f"{reason}: {GET_HOST_STATE}" if reason == NO_HOST_STATE else reason


def _kubelet_verdict(answer: NodeAnswer) -> str:
    if answer.verdict.admits:
        return f"its kubelet would admit the pod: {_placement(answer)}"
    return f"its kubelet: {answer.verdict.kind}: {answer.verdict.reason}"


# Nodes


def print_nodes(summaries: Sequence[NodeSummary], *, wide: bool) -> None:
    heads = ["NODE", "POLICY", "FREE PER NUMA NODE", "LARGEST REQUEST"]
    if wide:
        heads[2:2] = ["SCOPE", "CPU MANAGER", "MEMORY MANAGER", "PODS", "VERSION", "RESTRICTIONS", "NUMA NODES"]
        heads.append("PROBLEMS")
    print_table(heads, [_node_row(summary, wide=wide) for summary in summaries], wide=wide)
    if unknown_nodes := [summary.node for summary in summaries if summary.unknown == NO_HOST_STATE]:
        terminal.print_notes([f"{name_nodes(unknown_nodes)}: {NO_HOST_STATE}: {GET_HOST_STATE}"])
    terminal.print_notes([f"node {summary.node}: {summary.stale}" for summary in summaries if summary.stale])


def _node_row(summary: NodeSummary, *, wide: bool) -> list[str]:
    settings = summary.settings
    topology = settings.topology if settings else None
    free = "; ".join(f"{node}: {_amounts(amounts)}" for node, amounts in summary.free.items())
    row = [summary.node, str(topology.policy) if topology else "-"]
    row += [summary.unknown or free or "-", _amounts(summary.largest)]
    if wide:
        row[2:2] = [
            str(topology.scope) if topology else "-",
            str(settings.cpus.policy) if settings else "-",
            str(settings.memory_policy) if settings else "-",
            str(summary.pods) if summary.free else "-",
            summary.kubelet_version or "-",
            ", ".join(summary.restrictions) or "-",
            str(len(summary.free)) if summary.free else "-",
        ]
        row.append("; ".join(filter(None, (summary.stale, *summary.doubts))) or "-")
    return row


def _amounts(amounts: Amounts) -> str:
    """Amounts that can be requested: bytes are rounded down to MiB."""
    ordered_amounts = sorted(amounts.items(), key=lambda item: (item[0] != CPU, item[0] != MEMORY, item[0]))
    rounded_amounts = {
        name: size - size % _MIB if name == MEMORY or is_hugepages(name) else size for name, size in ordered_amounts
    }
    return ", ".join(sentences.format_amount(name, size) for name, size in rounded_amounts.items()) or "-"


# Documents


def answers_document(questions: Sequence[AskedPod], release: Release | None = None) -> dict[str, Any]:
    """Return the answers; *release*: a release that is not known as a whole."""
    knowledge = release.date_document() if release else {}
    return {"version": VERSION, **knowledge, "answers": [_answer_document(question) for question in questions]}


def _answer_document(question: AskedPod) -> dict[str, Any]:
    pod = question.answers.pod
    return {
        "pod": {"namespace": pod.namespace, "name": pod.name},
        "verdict": question.answers.verdict,
        "admitted": question.admitted,
        "workload": question.workload.to_document() if question.workload else None,
        "notes": list(question.notes),
        "groups": [_group_document(group) for group in question.answers.groups],
    }


def _group_document(group: AnswerGroup) -> dict[str, Any]:
    ledger = group.host.ledger if group.host else None
    return {
        "answer": str(group.first.kind),
        "code": group.first.code,
        "reason": group.first.reason,
        "numaNodes": group.first.numa_nodes,
        "nodes": [_node_answer_document(answer) for answer in group.answers],
        "misfits": list(group.misfits),
        "proposals": [proposal.to_document(ledger) for proposal in group.remedies.proposals] if ledger else [],
        "unsearched": list(group.remedies.unsearched),
    }


def _node_answer_document(answer: NodeAnswer) -> dict[str, Any]:
    return {
        "node": answer.node,
        "kubelet": str(answer.verdict.kind),
        "notConsidered": list(answer.excluded),
        "detail": answer.verdict.detail,
        "placements": [
            {
                "container": placement.container,
                "nodes": sentences.node_list(placement.hint.nodes),
                "given": placement.as_text(),
                "possible": {resource: str(choices) for resource, choices in placement.choices.items()},
            }
            for placement in answer.verdict.placements
        ],
        "claims": [claim.to_document() for claim in answer.claims],
    }


def nodes_document(summaries: Sequence[NodeSummary]) -> dict[str, Any]:
    return {"version": VERSION, "nodes": [_node_document(summary) for summary in summaries]}


def _node_document(summary: NodeSummary) -> dict[str, Any]:
    settings = summary.settings
    return {
        "node": summary.node,
        "unknown": summary.unknown,
        "problems": list(filter(None, (summary.stale, *summary.doubts))),
        "restrictions": list(summary.restrictions),
        "kubeletVersion": summary.kubelet_version,
        **(settings.release.date_document() if settings else {}),
        "topologyManagerPolicy": str(settings.topology.policy) if settings else None,
        "topologyManagerScope": str(settings.topology.scope) if settings else None,
        "cpuManagerPolicy": str(settings.cpus.policy) if settings else None,
        "memoryManagerPolicy": str(settings.memory_policy) if settings else None,
        "pods": summary.pods,
        "numaNodes": [{"id": node, "free": dict(amounts)} for node, amounts in summary.free.items()],
        "largestRequests": dict(summary.largest),
    }


# Upgrades


def upgrades_document(upgrades: Sequence[NodeUpgrade], release: Release) -> dict[str, Any]:
    nodes = [upgrade.to_document() for upgrade in upgrades]
    safe = all(upgrade.safe for upgrade in upgrades)
    head = {"version": cluster_upgrade.VERSION, "to": release.version, **release.date_document()}
    return {**head, "safe": safe, "nodes": nodes}


def print_upgrades(upgrades: Sequence[NodeUpgrade], release: Release) -> None:
    items = [
        item._replace(text=f"{upgrade.node} ({upgrade.version or 'unknown version'}): {item.text}")
        for upgrade in upgrades
        for item in upgrade.items(release)
    ]
    pods = pluralize(sum(upgrade.checked for upgrade in upgrades), "running pod")
    heading = f"{pods} on {pluralize(len(upgrades), 'node')} checked for Kubernetes {release}"
    unsafe_count = sum(not upgrade.safe for upgrade in upgrades)
    verdict = f"{pluralize(unsafe_count, 'node')} would break or cannot be checked" if unsafe_count else ""
    terminal.print_lines(upgrade_lines(items, release, verdict=verdict, heading=heading))
