"""``alignup cluster plan``: the plan of each pod or gang, and its output."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from alignup.align.explain import sentences
from alignup.align.workload import Pod
from alignup.cli import inputs, terminal
from alignup.cli.app import InputError, Place
from alignup.cli.layout import paragraph, section, table
from alignup.cli.options import PlanOptions
from alignup.cli.plan import describe_proof
from alignup.cli.plan_sources import PlanQuestion
from alignup.kubernetes.api.objects import ApiPodSpec
from alignup.picture.machine_text import draw_text
from alignup.picture.text_format import Cell, Line, pluralize
from alignup.placement.moves import Defragmentation, MovePlan, PlanStep
from alignup.schedule.cluster_plan import (
    EvictionFacts,
    PlanFacts,
    defragment_for,
    gang_of,
    hosts_after,
    pending_pod,
    plan_for_pods,
)
from alignup.schedule.cluster_snapshot import ClusterView
from alignup.schedule.move_searches import describe_step
from alignup.schedule.node_selection import scheduling_spec
from alignup.schedule.workload_answers import accept_for, split_by_object

VERSION = 1  #: of the JSON document
MAX_DRAWN = 4  #: nodes whose pictures are printed


class PlannedRequest(NamedTuple):
    """A pod or a gang, and its plan."""

    name: str
    pods: int
    plan: MovePlan


class PlanAnswer(NamedTuple):
    """What is asked for: a document, and the same as text."""

    steps: tuple[PlanStep, ...]  #: of the only plan, or of the first one
    feasible: bool
    document: dict[str, Any]
    print_text: Callable[[], None]


def print_answer(answer: PlanAnswer, output: str) -> None:
    if output in terminal.DOCUMENTS:
        terminal.print_as(output, answer.document)
    else:
        answer.print_text()


def answer_plans(question: PlanQuestion, options: PlanOptions) -> PlanAnswer:
    with terminal.waiting_message("Searching for the fewest moves"):
        plans = list(plan_all(question, options))
    return PlanAnswer(
        plans[0].plan.steps,
        all(planned_request.plan.feasible for planned_request in plans),
        plans_document(plans, question.limits),
        partial(print_plans, question.view, plans, question.limits),
    )


def plan_all(question: PlanQuestion, options: PlanOptions) -> Iterator[PlannedRequest]:
    """Plan for each pod with its gang, for all pods of each workload, and for pods that wait together."""
    view, facts = question.view, question.facts
    for name, together in question.waiting:
        yield _plan(view, facts, name, together, options)
    planned_uids: set[str] = set()
    for pod in question.pods:
        if pod.metadata.uid in planned_uids:
            continue
        with inputs.input_errors(Place(detail=f"in pod {pod.metadata.full_name}")):
            if pod.spec.node_name and not pod.finished:
                message = f"pod {pod.metadata.full_name} is bound to node {pod.spec.node_name} already"
                raise InputError(message, advice="Name a pod that waits, or was rejected.")
            gang = gang_of(facts, pod) if isinstance(facts, PlanFacts) else [pod]
            planned_uids.update(member.metadata.uid for member in gang)
            pending_pods = list(map(pending_pod, gang))
        yield _plan(view, facts, f"pod {pod.metadata.full_name}", pending_pods, options)
    with inputs.input_errors(Place()):
        accepted_workloads = accept_for(view.cluster, question.workloads)
    for templates in split_by_object(accepted_workloads):
        first = templates[0]
        with inputs.input_errors(Place.at(first.source)):
            specs = [scheduling_spec(template) for template in templates]
        pending_pods = [
            (pod, spec) for template, spec in zip(templates, specs, strict=True) for pod in template.pods()
        ] or [(first.pod, specs[0])]
        yield _plan(view, facts, f"{first.kind} {first.namespace}/{first.name}", pending_pods, options)


def _plan(
    view: ClusterView, facts: EvictionFacts, name: str, pods: Sequence[tuple[Pod, ApiPodSpec]], options: PlanOptions
) -> PlannedRequest:
    if any(pod.uses_claims for pod, _ in pods):
        advice = "Ask 'alignup cluster why' which nodes have devices for it."
        raise InputError(f"{name} has ResourceClaims, which plans do not consider", advice=advice)
    with inputs.input_errors(Place(detail=f"in {name}")):
        plan = plan_for_pods(view, facts, pods, rules=options.rules(), should_stop=options.start_budget())
    return PlannedRequest(name, len(pods), plan)


def defragment(question: PlanQuestion, options: PlanOptions, *, max_moves: int) -> PlanAnswer:
    """Let more pods like the pod of the first workload fit."""
    workload, view = question.workloads[0], question.view
    with inputs.input_errors(Place.at(workload.source)), terminal.waiting_message("Searching for moves"):
        (accepted_workload,) = accept_for(view.cluster, [workload])
        result = defragment_for(
            view,
            question.facts,
            (accepted_workload.pod, scheduling_spec(accepted_workload)),
            rules=options.rules(),
            max_moves=max_moves,
            should_stop=options.start_budget(),
        )
    document = _defragmentation_document(result, question.limits)
    return PlanAnswer(result.steps, bool(result.steps), document, partial(_print_defragmentation, question, result))


# Text


def _print_defragmentation(question: PlanQuestion, result: Defragmentation) -> None:
    """Print how many more pods like the pod of the first workload fit after moves."""
    workload, limits = question.workloads[0], question.limits
    count_text = f"{pluralize(result.fitting, 'pod')} like {workload.namespace}/{workload.title} fit now"
    if result.gains:
        moves, gain = result.gains[-1]
        title = f"{count_text}, and {gain} more after {pluralize(moves, 'move')}"
    else:
        title = f"{count_text}, and no move was found that lets more fit"
    lines = [*paragraph(f"{title}. {limits}" if limits else title, style="title")]
    if not result.complete:
        lines += paragraph("The best within the budget; a longer one (--budget) may find more.", style="dim")
    if result.gains:
        lines += [(), *table([(str(moves), str(gain)) for moves, gain in result.gains], ("MOVES", "PODS GAINED"))]
        lines += section("Steps, in this order")
        plan = MovePlan(result.steps)
        for number, step in enumerate(result.steps, 1):
            lines += paragraph(describe_step(plan, step), prefix=f"  {number}. ")
    terminal.print_lines(lines)


def print_plans(view: ClusterView, plans: Sequence[PlannedRequest], limits: str = "") -> None:
    """Print *plans*; *limits*: what is not known about the cluster, in a sentence."""
    lines: list[Line] = []
    for planned_request in plans:
        lines += [(), (Cell("─" * terminal.width(), "frame"),), ()] if lines else []
        lines += _lines(view, planned_request, limits)
    terminal.print_lines(lines)


def _lines(view: ClusterView, planned_request: PlannedRequest, limits: str) -> Iterator[Line]:
    plan = planned_request.plan
    title = (
        planned_request.name
        if planned_request.pods == 1
        else f"{planned_request.name} ({pluralize(planned_request.pods, 'pod')})"
    )
    beyond = f". {limits}" if limits else ""
    if not plan.feasible:
        yield from paragraph(f"No plan for {title}{beyond}", style="warn")
        yield from paragraph(plan.problem)
        return
    moves = len(plan.evictions)
    if moves:
        yield from paragraph(f"{_capital(title)} needs {pluralize(moves, 'move')}{beyond}", style="title")
        yield from paragraph(describe_proof(moves, plan.at_least, plan.tried), style="dim")
        yield from section("Steps, in this order")
    else:
        yield from paragraph(f"{_capital(title)} needs no move: the nodes admit it{beyond}", style="title")
        yield from section("Placement")
    for number, step in enumerate(plan.steps, 1):
        yield from paragraph(describe_step(plan, step), prefix=f"  {number}. ")
    if moves:
        yield from _pictures(view, plan)


def _pictures(view: ClusterView, plan: MovePlan) -> Iterator[Line]:
    changed_nodes = hosts_after(view, plan.steps)
    for name in list(changed_nodes)[:MAX_DRAWN]:
        machine = view.reports[name].machine
        for moment, host in zip(("before", "after"), changed_nodes[name], strict=True):
            yield from section(f"{name} {moment}")
            yield from draw_text(machine, host.ledger, width=terminal.width())
    if len(changed_nodes) > MAX_DRAWN:
        yield from paragraph(f"{len(changed_nodes) - MAX_DRAWN} more nodes change.", style="dim")


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


# Documents


def plans_document(plans: Sequence[PlannedRequest], limits: str = "") -> dict[str, Any]:
    return {
        "version": VERSION,
        "limits": limits,
        "plans": [_plan_document(planned_request) for planned_request in plans],
    }


def _defragmentation_document(result: Defragmentation, limits: str) -> dict[str, Any]:
    gains = [{"moves": moves, "gained": gain} for moves, gain in result.gains]
    facts_found = {"fitting": result.fitting, "gains": gains, "complete": result.complete}
    return {"version": VERSION, "limits": limits, **facts_found, "steps": list(map(_step_document, result.steps))}


def _plan_document(planned_request: PlannedRequest) -> dict[str, Any]:
    plan = planned_request.plan
    return {
        "name": planned_request.name,
        "pods": planned_request.pods,
        "feasible": plan.feasible,
        "problem": plan.problem,
        "provedMinimal": plan.proved,
        "atLeast": plan.at_least,
        "tried": plan.tried,
        "moves": len(plan.evictions),
        "steps": list(map(_step_document, plan.steps)),
    }


def _step_document(step: PlanStep) -> dict[str, Any]:
    return {
        "action": "evict" if step.evicts else "admit",
        "pod": {"namespace": step.pod.namespace, "name": step.pod.name, "uid": step.pod.uid},
        "replacement": step.replacement,
        "node": step.host,
        "placements": [
            {
                "container": placement.container,
                "nodes": sentences.node_list(placement.hint.nodes),
                "given": placement.as_text(),
            }
            for placement in (step.verdict.placements if step.verdict else ())
        ],
    }
