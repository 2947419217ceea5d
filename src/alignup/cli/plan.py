"""``alignup plan``: make room for a pod on one node, with the fewest moves."""

from collections.abc import Iterator, Sequence
from typing import Any

import click

from alignup.align.explain import sentences
from alignup.align.host import Host
from alignup.cli import inputs, terminal
from alignup.cli.app import Place, define_command
from alignup.cli.exit_codes import FAILED
from alignup.cli.inputs import HostInput
from alignup.cli.layout import paragraph, section
from alignup.cli.options import (
    PlanOptions,
    PredictedHostOptions,
    WorkloadSelection,
    output_option,
    preview_option,
    with_options,
    workload_argument,
    workload_option,
)
from alignup.cli.why import read_inputs
from alignup.documents import decisions
from alignup.picture.machine_text import draw_text
from alignup.picture.text_format import Line, pluralize
from alignup.plan.node_plan import NodePlan, plan_on_node

VERSION = 1  #: of the JSON document
UNKNOWN_PLACES = "These are the files of one node, so the new places of evicted pods are unknown."


@define_command(
    "plan",
    "alignup plan -f examples/node/trainer.yaml --machine 'pack:2 numa:1 core:8 pu:2' "
    "--devices example.com/gpu=2@0 --devices example.com/nic=1@0",
    "cd examples/node; alignup plan -f trainer.yaml --machine machine.yaml --config kubelet.yaml --kubelet-dir state "
    "--pods running.yaml",
)
@workload_argument
@workload_option
@with_options("host", PredictedHostOptions)
@preview_option
@with_options("selection", WorkloadSelection)
@with_options("options", PlanOptions)
@output_option("text", "json", "yaml")
def command(  # noqa: PLR0913 - options
    *,
    host: PredictedHostOptions,
    paths: tuple[str, ...],
    files: tuple[str, ...],
    selection: WorkloadSelection,
    options: PlanOptions,
    output: str,
) -> None:
    """Find the fewest running pods whose end lets a node admit a pod, with the node before and after as pictures.

    The inputs are those of 'alignup why'; --pods names the running pods and says who may be evicted. Of equally few
    pods, those with the lowest priority, then with the least memory, then the youngest are chosen. Every plan is
    decided again. Nothing is changed.

    Never evicted: pods of higher priority, static pods, pods of DaemonSets, Jobs and exempt namespaces, pods with
    local volumes, with cluster-autoscaler.kubernetes.io/safe-to-evict: "false" or topology.alignup.dev/never-move.
    Absent priorities count as equal. Pods without a controller are lost, so they end only with --allow-preemption.

    The exit code is 0 when all pods have a plan, 1 when one has none, 2 when the input is invalid.
    """
    if not (files := (*paths, *files)):
        raise click.UsageError("Give FILE, or -f FILE.")
    node, manifests = read_inputs(host, files)
    terminal.print_notes((*node.notes, *manifests.warnings))
    workloads = inputs.select_workloads(manifests.workloads, selection, files=files)
    plans = []
    with terminal.waiting_message("Searching for the fewest moves"):
        for workload in workloads:
            with inputs.input_errors(Place.at(workload.source)):
                plan = plan_on_node(
                    node.host, workload.pod, node.running, rules=options.rules(), should_stop=options.start_budget()
                )
            plans.append(plan)
    if output == "text":
        terminal.print_lines(line for plan in plans for line in _lines(node.host, plan))
    else:
        terminal.print_as(output, _document(node, plans))
    if not all(plan.plan.feasible for plan in plans):
        raise click.exceptions.Exit(FAILED)


def _lines(host: Host, node_plan: NodePlan) -> Iterator[Line]:
    plan, name = node_plan.plan, f"{node_plan.pod.namespace}/{node_plan.pod.name}"
    if not plan.feasible:
        yield from paragraph(f"No plan for pod {name}", style="warn")
        yield from paragraph(plan.problem)
        return
    evictions = plan.evictions
    if not evictions:
        yield from paragraph(f"Pod {name} needs no move: the node admits it", style="title")
    else:
        moves = pluralize(len(evictions), "move")
        yield from paragraph(f"Pod {name} needs {moves}. {UNKNOWN_PLACES}", style="title")
        yield from paragraph(describe_proof(len(evictions), plan.at_least, plan.tried), style="dim")
    yield from section("Moves, in this order" if evictions else "Placement")
    for number, step in enumerate(evictions, 1):
        controller = node_plan.controllers[step.pod.uid]
        fate = f"{controller} creates it again" if controller else "it has no controller, so it is lost"
        yield from paragraph(f"evict {step.name}: {fate}", prefix=f"  {number}. ")
    allocations = sentences.describe_allocations(node_plan.decision.placements)
    prefix = f"  {len(evictions) + 1}. " if evictions else "  - "
    yield from paragraph(f"{name} is admitted, decided: {allocations}", prefix=prefix)
    for title, ledger in (("Before", host.ledger), ("After", node_plan.decision.after)):
        if evictions:
            yield from section(title)
            yield from draw_text(host.machine, ledger, width=terminal.width())


def describe_proof(moves: int, at_least: int, try_count: int) -> str:
    """Say whether a plan has certainly the fewest moves."""
    sets = f"{pluralize(try_count, 'set')} of pods decided"
    if at_least >= moves:
        return f"Proved minimal: no plan has fewer moves ({sets})."
    return f"The best plan within the budget: at least {pluralize(at_least, 'move')} needed ({sets})."


def _document(node: HostInput, plans: Sequence[NodePlan]) -> dict[str, Any]:
    return {
        "version": VERSION,
        **node.host.settings.release.to_document(),
        "newPlacesKnown": False,
        "plans": [
            {
                "pod": {"namespace": node_plan.pod.namespace, "name": node_plan.pod.name},
                "feasible": node_plan.plan.feasible,
                "problem": node_plan.plan.problem,
                "provedMinimal": node_plan.plan.proved,
                "atLeast": node_plan.plan.at_least,
                "tried": node_plan.plan.tried,
                "moves": [
                    {
                        "pod": {"namespace": step.pod.namespace, "name": step.pod.name, "uid": step.pod.uid},
                        "controller": node_plan.controllers[step.pod.uid] or None,
                        "lost": not node_plan.controllers[step.pod.uid],
                    }
                    for step in node_plan.plan.evictions
                ],
                "decision": decisions.to_document(node_plan.decision),
            }
            for node_plan in plans
        ],
    }
