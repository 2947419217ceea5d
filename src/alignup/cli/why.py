"""``alignup why``: explain why a pod is admitted or rejected, and what would admit it."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from alignup.align.decision import Decision
from alignup.align.explain import sentences
from alignup.align.explain.changes import Proposal
from alignup.align.explain.device_choices import explain_choices
from alignup.align.explain.remedies import find_remedies
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.merging.merge import MergeRule
from alignup.align.resize import ResizeOutcome, decide_resize
from alignup.cli import inputs, terminal
from alignup.cli.app import InputError, Place, define_command
from alignup.cli.exit_codes import FAILED
from alignup.cli.inputs import HostInput
from alignup.cli.layout import paragraph, section
from alignup.cli.options import (
    IGNORE_MISSING_HELP,
    PredictedHostOptions,
    WorkloadSelection,
    output_option,
    preview_option,
    search_option,
    with_options,
    workload_argument,
    workload_option,
)
from alignup.kubernetes.manifests.workloads import LoadedWorkloads, Workload
from alignup.picture.decision_text import draw_decision
from alignup.picture.text_format import Cell, Line

if TYPE_CHECKING:
    from alignup.align.claims.alignment import ExplainedClaim, HostClaims

VERSION = 1  #: of the JSON document
_MAX_DECISIONS = 16  #: of those that a kubelet may make at random
REJECTED = FAILED
_LINKS = "--machine examples/locality/machine.yaml --set topologyManagerPolicy=best-effort"
_NODE = "--machine examples/node/machine.yaml --config examples/node/kubelet.yaml --state examples/node/state"


@define_command(
    "why",
    "alignup why -f examples/node/trainer.yaml --machine 'pack:2 numa:1 core:8 pu:2' "
    "--devices example.com/gpu=2@0 --devices example.com/nic=1@0",
    f"alignup why -f examples/node/trainer.yaml {_NODE}",
    f"alignup why -f examples/locality/pods.yaml {_LINKS}",
)
@workload_argument
@workload_option
@with_options("host", PredictedHostOptions)
@preview_option
@with_options("selection", WorkloadSelection)
@search_option("a rejected pod")
@click.option("--resize", is_flag=True, help="Say what becomes of a resize of running pods to those in FILE.")
@click.option("--ignore-missing-devices", "lenient", is_flag=True, help=f"{IGNORE_MISSING_HELP}.")
@output_option("text", "json", "yaml")
def command(  # noqa: PLR0913 - options
    *,
    host: PredictedHostOptions,
    paths: tuple[str, ...],
    files: tuple[str, ...],
    selection: WorkloadSelection,
    search: float,
    resize: bool,
    lenient: bool,
    output: str,
) -> None:
    """Explain the decision on a pod: the verdict, each resource's hints, how the NUMA nodes were chosen, the placement.

    A rejection also lists what did not fit, and changes that would admit the pod; each change was tried. Every workload
    in FILE is decided on its own, one replica of it, on the node as given. Nothing is changed.

    A pod that requests devices which no device plugin provides is not schedulable. A kubelet that gets it anyway
    ignores these requests; its verdict is shown, too, and counts with --ignore-missing-devices.

    Where the kubelet or a device plugin chooses devices at random, all possible choices are shown. A pod may be
    rejected if it depends on the choice for one container whether there is a place for the next.

    An archive of 'alignup collect' (*.tar.gz) as FILE has the pod, the machine, the configuration and the state of its
    node; options given as well count instead.

    With --resize, FILE has pods that run on the node of --state and --pods, with the requests that they are to get.

    The exit code is 0 when all pods are admitted, 1 when one is not, 2 when the input is invalid.
    """
    if not (files := (*paths, *files)):
        raise click.UsageError("Give FILE, or -f FILE.")
    node, loaded = read_inputs(host, files)
    terminal.print_notes((*node.notes, *loaded.warnings))
    chosen = inputs.select_workloads(loaded.workloads, selection, files=files)
    if resize:
        _explain_resizes(node.host, chosen, output)
        return
    claims = None
    if loaded.claims or any(workload.pod.uses_claims for workload in chosen):
        from alignup.cli import claims_output  # noqa: PLC0415 - most pods have no claims

        claims = claims_output.with_valid_selectors(claims_output.read_claims(loaded, node.host.machine))
    terminal.print_notes(sentences.ignored_requests(node.host, [workload.pod for workload in chosen]))
    with terminal.waiting_message("Searching for changes that would admit it"):
        explanations = [
            explain(node.host, workload, seconds=search, lenient=lenient, claims=claims) for workload in chosen
        ]
    if output == "text":
        if node.defaults:
            terminal.print_lines(paragraph(node.defaults, style="dim"))
        print_text(node.host, explanations)
    else:
        terminal.print_as(output, to_document(node, explanations))
    if not all(explanation.admitted for explanation in explanations):
        raise click.exceptions.Exit(REJECTED)


def read_inputs(host: PredictedHostOptions, files: tuple[str, ...]) -> tuple[HostInput, LoadedWorkloads]:
    """Return the node and the workloads of manifests, or of an archive."""
    if not files[-1].endswith(inputs.ARCHIVES):
        node = inputs.read_host(host, kubelet_faults=True)
        return node, inputs.read_manifests(files, node.host.settings.gates)
    if len(files) > 1:
        raise click.UsageError("Give an archive of 'alignup collect' alone.")
    from alignup.cli import collected  # noqa: PLC0415 - only for archives

    return collected.read(host, files[0])


def _explain_resizes(host: Host, workloads: Sequence[Workload], output: str) -> None:
    """Print what the kubelet does when running pods get the requests of *workloads*."""
    known = {(admitted.pod.namespace, admitted.pod.name): admitted.pod for admitted in host.ledger.pods.values()}
    verdicts = []
    for workload in workloads:
        running = known.get((workload.pod.namespace, workload.pod.name))
        if running is None:
            message = f"pod {workload.pod.namespace}/{workload.pod.name} does not run on the node"
            advice = "Give --state DIR and --pods FILE with it."
            raise InputError(message, place=Place.at(workload.source), advice=advice)
        verdicts.append((running, decide_resize(host, running, workload.pod)))
    release = host.settings.release
    if output == "text":
        for running, verdict in verdicts:
            terminal.print_lines(paragraph(f"{verdict.describe(running)} (Kubernetes {release.describe()})"))
    else:
        resizes = [
            {"pod": f"{running.namespace}/{running.name}", "outcome": str(verdict.outcome), "message": verdict.message}
            for running, verdict in verdicts
        ]
        document = {"version": VERSION, **release.to_document(), "resizes": resizes}
        terminal.print_as(output, document)
    if any(verdict.outcome is not ResizeOutcome.DONE for _, verdict in verdicts):
        raise click.exceptions.Exit(REJECTED)


class Explanation(NamedTuple):
    workload: Workload
    decision: Decision  #: of the kubelet, which ignores requests for missing devices
    proposals: tuple[Proposal, ...] = ()  #: changes that admit a rejected pod
    unsearched: tuple[str, ...] = ()  #: what was not searched for more of them
    missing: tuple[str, ...] = ()  #: requested resources that no device plugin provides
    lenient: bool = False  #: whether the kubelet's decision counts regardless of missing devices
    defects: tuple[str, ...] = ()  #: known defects of the kubelet that change the decision
    claims: "tuple[ExplainedClaim, ...]" = ()
    others: tuple[Decision, ...] = ()  #: that the kubelet may make instead, at random
    device_choices: tuple[str, ...] = ()  #: what random choices of devices mean

    @property
    def admitted(self) -> bool:
        """Whether the pod is admitted, whatever is chosen at random."""
        admitted = all(decision.admitted for decision in (self.decision, *self.others))
        certain = admitted and not self.decision.may_be_rejected
        return certain and (not self.missing or self.lenient)

    @property
    def verdict(self) -> str:
        if not self.missing or self.lenient:
            return sentences.verdict(self.decision)
        return sentences.not_schedulable(self.workload.pod, self.missing)


def explain(
    host: Host, workload: Workload, *, seconds: float, lenient: bool = False, claims: "HostClaims | None" = None
) -> Explanation:
    """Decide on one replica of *workload*; if it is rejected, search up to *seconds* for changes that admit it."""
    with inputs.input_errors(Place.at(workload.source)):
        if claims is not None and not workload.host:
            workload = replace(workload, pod=claims.objects.with_class_resources(workload.pod))
        ours = not host.settings.kubelet_faults  # what we do ourselves is certain
        decision = host.decide(workload.pod) if ours else host.predict(workload.pod)
        random = any(step.rule is MergeRule.RANDOM for step in decision.steps)
        others = islice(host.possible_decisions(workload.pod), 1, _MAX_DECISIONS) if random else ()
        missing = host.missing_devices(workload.pod)
        safe = decision if ours else host.without_faults().predict(workload.pod)
        explanation = Explanation(
            workload,
            decision,
            missing=missing,
            lenient=lenient,
            defects=tuple(sentences.describe_defects(decision, safe)),
            claims=claims.explain(workload.pod, decision.placements, host) if claims is not None else (),
            others=tuple(others),
            device_choices=_device_choices(host, decision),
        )
        if decision.admitted:
            return explanation
        end = time.monotonic() + seconds
        remedies = find_remedies(host, workload.pod, should_stop=lambda: time.monotonic() > end)
    return explanation._replace(proposals=remedies.proposals, unsearched=remedies.unsearched)


def _device_choices(host: Host, decision: Decision) -> tuple[str, ...]:
    """Return what is known about devices that are chosen at random; most pods get none, or from one switch."""
    if not any(placement.choices for placement in decision.placements):
        return ()
    meaning = explain_choices(host.machine.locality, decision.placements) if host.machine.pci else ()
    return (*sentences.describe_choices(decision.placements), *meaning)


def print_text(
    host: Host, explanations: Sequence[Explanation], *, kubelet: bool = True, say: Callable[[str], str] = str
) -> None:
    """Print what a kubelet decides, or without *kubelet*, what we decide ourselves; *say* changes sentences."""
    release = f" · Kubernetes {host.settings.release.describe()}" if kubelet else ""
    lines: list[Line] = []
    for explanation in explanations:
        lines += [(), (Cell("─" * terminal.width(), "frame"),), ()] if lines else []
        lines += _lines(host, explanation, release, say)
    terminal.print_lines(lines)


def _lines(host: Host, explanation: Explanation, release: str, say: Callable[[str], str]) -> Iterator[Line]:
    decision = explanation.decision
    if explanation.workload.template:
        yield from paragraph(f"{explanation.workload.kind} {explanation.workload.title}", style="dim")
    yield from _verdict_lines(explanation, say)
    yield from paragraph(f"{say(sentences.describe_rules(decision))}{release}", style="dim")
    for line in draw_decision(host, explanation.workload.pod, decision, width=terminal.width()):
        yield (Cell(say(line[0].text), "title"),) if len(line) == 1 and line[0].style == "title" else line
    if explanation.device_choices:
        yield from section("Devices that are chosen at random", map(say, explanation.device_choices))
    if explanation.claims:
        from alignup.cli import claims_output  # noqa: PLC0415

        yield from claims_output.claim_lines(explanation.claims)
    if decision.rejection:
        yield from section("What does not fit", map(say, sentences.describe_rejection(decision)))
        yield from _proposal_lines(explanation, host.ledger, say)


def _verdict_lines(explanation: Explanation, say: Callable[[str], str]) -> Iterator[Line]:
    decision = explanation.decision
    yield from paragraph(say(explanation.verdict), style="title" if explanation.admitted else "warn")
    if explanation.missing:
        yield from paragraph(_other_verdict(explanation))
    if decision.rejection:
        yield from paragraph(decision.rejection.message)
    for other in explanation.others:
        nodes = ", ".join(dict.fromkeys(sentences.format_hint(step.hint) for step in other.steps))
        given = sentences.describe_allocations(other.placements) if other.admitted else ""
        yield from paragraph(f"Or, at random, on {nodes}: {': '.join(filter(None, (sentences.verdict(other), given)))}")
    if possible := sentences.describe_possible_rejection(decision):
        yield from paragraph(f"{possible[0].upper()}{possible[1:]}")
    for defect in explanation.defects:
        yield from paragraph(f"This is {defect}", style="warn")


def _other_verdict(explanation: Explanation) -> str:
    """Return the verdict that does not count: of the kubelet, or of a scheduler."""
    if explanation.lenient:
        return f"For a scheduler: {sentences.not_schedulable(explanation.workload.pod, explanation.missing)}"
    declared = " ".join(f"--devices {name}=..." for name in explanation.missing)
    return (
        f"The kubelet ignores such requests: {sentences.verdict(explanation.decision)} "
        f"(to decide like it: --ignore-missing-devices; to declare the devices: {declared})"
    )


def _proposal_lines(explanation: Explanation, ledger: Ledger, say: Callable[[str], str]) -> Iterator[Line]:
    proposals = explanation.proposals
    if proposals:
        yield from section("What would admit it (each change was tried)")
    else:
        yield from section("What would admit it", ["no single change that was tried"])
    for proposal in proposals:
        yield from paragraph(say(proposal.describe(ledger)), prefix="  - ")
        yield from paragraph(f"→ {proposal.describe_result()}", prefix="    ", style="dim")
    if explanation.unsearched:
        yield from section("What was not tried", explanation.unsearched)


def to_document(node: HostInput, explanations: Sequence[Explanation]) -> dict[str, Any]:
    from alignup.documents import decisions  # noqa: PLC0415 - not for text

    answers = [
        {
            "workload": {
                "kind": explanation.workload.kind,
                "name": explanation.workload.title,
                "source": str(explanation.workload.source),
            },
            "verdict": explanation.verdict,
            "schedulable": not explanation.missing,
            "missingDevices": list(explanation.missing),
            "kubeletVerdict": sentences.verdict(explanation.decision),
            "decision": decisions.to_document(explanation.decision),
            "otherDecisions": [decisions.to_document(decision) for decision in explanation.others],
            "misfits": list(sentences.describe_rejection(explanation.decision)),
            "proposals": [proposal.to_document(node.host.ledger) for proposal in explanation.proposals],
            "unsearched": list(explanation.unsearched),
            "defects": list(explanation.defects),
            "claims": [claim.to_document() for claim in explanation.claims],
            "deviceChoices": list(explanation.device_choices),
            "notes": [
                *filter(None, [node.defaults]),
                *node.notes,
                *sentences.ignored_requests(node.host, [explanation.workload.pod]),
            ],
        }
        for explanation in explanations
    ]
    return {"version": VERSION, **node.host.settings.release.to_document(), "answers": answers}
