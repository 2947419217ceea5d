"""``alignup why``: explain why a pod is admitted or rejected, and what would admit it."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter
from pathlib import Path
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
from alignup.align.reason_codes import MAY_BE_REJECTED, NOT_SCHEDULABLE
from alignup.align.resize import ResizeOutcome, decide_resize
from alignup.cli import inputs, terminal
from alignup.cli.app import InputError, Place, define_command
from alignup.cli.exit_codes import FAILED
from alignup.cli.inputs import HostInput
from alignup.cli.layout import paragraph, print_table, section, table
from alignup.cli.options import (
    IGNORE_MISSING_HELP,
    PredictedHostOptions,
    WorkloadSelection,
    flag_option,
    output_option,
    path_option,
    preview_option,
    search_option,
    with_options,
    workload_argument,
    workload_option,
)
from alignup.explain import PodExplanation, page
from alignup.kubernetes.manifests.workloads import LoadedWorkloads, Workload
from alignup.picture.decision_text import draw_decision
from alignup.picture.text_format import Cell, Line
from alignup.placement.pod_demands import Refusal, find_refusal
from alignup.placement.policy_outcomes import PolicyOutcome, policy_outcomes

if TYPE_CHECKING:
    from alignup.align.claims.alignment import ExplainedClaim, HostClaims

VERSION = 1  #: of the JSON document
_MAX_DECISIONS = 16  #: of the decisions that a kubelet may make at random
REJECTED = FAILED
_LINKS = "--machine examples/locality/machine.yaml --set topologyManagerPolicy=best-effort"
_NODE = "--machine examples/node/machine.yaml --config examples/node/kubelet.yaml --kubelet-dir examples/node/state"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerExtras:
    html: Path | None = path_option(
        "FILE", "Also write the answers and a picture of the node to FILE, one page for a ticket"
    )
    policies: bool = flag_option("Say what the pod would get under each policy")


@define_command(
    "why",
    "alignup why -f examples/node/trainer.yaml --machine 'pack:2 numa:1 core:8 pu:2' "
    "--devices example.com/gpu=2@0 --devices example.com/nic=1@0",
    f"alignup why -f examples/node/trainer.yaml {_NODE}",
    f"alignup why -f examples/locality/pods.yaml {_LINKS}",
)
@workload_argument
@workload_option
@click.option("-k", "--kustomize", "kustomization", metavar="DIR", help="Kustomization, which kubectl renders.")
@with_options("host", PredictedHostOptions)
@preview_option
@with_options("selection", WorkloadSelection)
@search_option("a rejected pod")
@with_options("extras", AnswerExtras)
@click.option("--resize", is_flag=True, help="Say what becomes of a resize of running pods to those in FILE.")
@click.option("--ignore-missing-devices", "lenient", is_flag=True, help=f"{IGNORE_MISSING_HELP}.")
@output_option("text", "wide", "json", "yaml", "name")
def command(  # noqa: PLR0913 - options
    *,
    host: PredictedHostOptions,
    paths: tuple[str, ...],
    files: tuple[str, ...],
    kustomization: str | None,
    selection: WorkloadSelection,
    search: float,
    extras: AnswerExtras,
    resize: bool,
    lenient: bool,
    output: str,
) -> None:
    """Explain the decision on a pod: the verdict, each resource's hints, how the NUMA nodes were chosen, the placement.

    A rejection also lists what did not fit, and changes that would admit the pod; each change was tried. Every workload
    in FILE is decided on its own, one replica of it, on the node as given. Nothing is changed. Files that cannot be
    read are reported after the others.

    A pod that requests devices which no device plugin provides is not schedulable. A kubelet that gets it anyway
    ignores these requests; its verdict is shown, too, and counts with --ignore-missing-devices.

    Where the kubelet or a device plugin chooses devices at random, all possible choices are shown. A pod may be
    rejected if it depends on the choice for one container whether there is a place for the next.

    A pod counts as rejected, too, if the node does not meet its annotation topology.alignup.dev/policy.

    An archive of 'alignup collect' (*.tar.gz) as FILE has the pod, the machine, the configuration and the state of its
    node; options given as well count instead.

    With --resize, FILE has pods that run on the node of --kubelet-dir and --pods, with the requests that they are to
    get.

    The exit code is 0 when all pods are admitted, 1 when one is not, 2 when the input is invalid.
    """
    files = (*paths, *files)
    if bool(files) is (kustomization is not None):
        raise click.UsageError("Give FILE, -f FILE or -k DIR.")
    node, manifests = read_inputs(host, files, kustomization)
    terminal.print_notes((*node.notes, *manifests.warnings))
    workloads = inputs.select_workloads(manifests.workloads, selection, files=files or (f"{kustomization}",))
    if resize:
        _explain_resizes(node.host, workloads, output)
        return
    explanations = _explain(node.host, manifests, workloads, search, lenient=lenient)
    if extras.policies:
        explanations = [explanation.with_policies(node.host) for explanation in explanations]
    _print(node, explanations, output)
    if extras.html is not None:
        _write_page(node.host, explanations, extras.html)
    inputs.raise_problems(manifests)
    if not all(explanation.admitted for explanation in explanations):
        raise click.exceptions.Exit(REJECTED)


def _explain(
    host: Host, manifests: LoadedWorkloads, workloads: "Sequence[Workload]", seconds: float, *, lenient: bool
) -> "list[Explanation]":
    claims = None
    if manifests.claims or any(workload.pod.uses_claims for workload in workloads):
        from alignup.cli import claims_output  # noqa: PLC0415 - most pods have no claims

        claims = claims_output.with_valid_selectors(claims_output.read_claims(manifests, host.machine))
    terminal.print_notes(sentences.ignored_requests(host, [workload.pod for workload in workloads]))
    with terminal.waiting_message("Searching for changes that would admit it"):
        return [explain(host, workload, seconds=seconds, lenient=lenient, claims=claims) for workload in workloads]


def _print(node: HostInput, explanations: "Sequence[Explanation]", output: str) -> None:
    if output in terminal.DOCUMENTS:
        terminal.print_as(output, to_document(node, explanations))
    elif output == "text":
        if node.defaults:
            terminal.print_lines(paragraph(node.defaults, style="dim"))
        print_text(node.host, explanations)
    else:
        _print_short(explanations, output)


def _write_page(host: Host, explanations: "Sequence[Explanation]", file: Path) -> None:
    answers = [
        PodExplanation(
            host, explanation.workload.pod, explanation.decision, explanation.proposals, explanation.unsearched
        )
        for explanation in explanations
    ]
    title = ", ".join(explanation.verdict for explanation in explanations)
    with inputs.input_errors(Place("--html"), advice=inputs.WRITABLE):
        file.write_text(page(answers, title=title), "utf-8")
    click.echo(f"Wrote {file}.", err=True)


def _print_short(explanations: "Sequence[Explanation]", output: str) -> None:
    """Print a line for each workload, or the names of the admitted workloads."""
    if output == "name":
        for explanation in filter(attrgetter("admitted"), explanations):
            terminal.print_line(f"{explanation.workload.kind.lower()}/{explanation.workload.name}")
        return
    heads = ("WORKLOAD", "ADMITTED", "NUMA NODES", "PLACEMENT OR REASON")
    rows = []
    for explanation in explanations:
        decision, workload = explanation.decision, explanation.workload
        nodes = ", ".join(
            dict.fromkeys(sentences.format_nodes(placement.hint.nodes) for placement in decision.placements)
        )
        rejection = decision.rejection
        detail = explanation.verdict if rejection is None else f"{rejection.reason}: {rejection.message}"
        detail = sentences.describe_allocations(decision.placements) if explanation.admitted else detail
        name = f"{workload.kind.lower()}/{workload.title}"
        rows.append((name, "yes" if explanation.admitted else "no", nodes or "-", detail))
    print_table(heads, rows, wide=True)


def read_inputs(
    host: PredictedHostOptions, files: tuple[str, ...], kustomization: str | None = None
) -> tuple[HostInput, LoadedWorkloads]:
    """Return the node and the workloads of manifests, of a kustomization, or of an archive."""
    if kustomization is not None or not files[-1].endswith(inputs.ARCHIVES):
        node = inputs.read_host(host, kubelet_faults=True)
        gates = node.host.settings.gates
        if kustomization is not None:
            return node, inputs.read_kustomization(kustomization, gates)
        return node, inputs.read_manifests(files, gates, leave_out=True)
    if len(files) > 1:
        raise click.UsageError("Give an archive of 'alignup collect' alone.")
    from alignup.cli import collected  # noqa: PLC0415 - only for archives

    return collected.read(host, files[0])


def _explain_resizes(host: Host, workloads: Sequence[Workload], output: str) -> None:
    """Print what the kubelet does when running pods get the requests of *workloads*."""
    pods = {(entry.pod.namespace, entry.pod.name): entry.pod for entry in host.ledger.pods.values()}
    verdicts = []
    for workload in workloads:
        running_pod = pods.get((workload.pod.namespace, workload.pod.name))
        if running_pod is None:
            message = f"pod {workload.pod.namespace}/{workload.pod.name} does not run on the node"
            advice = "Give --kubelet-dir DIR and --pods FILE with it."
            raise InputError(message, place=Place.at(workload.source), advice=advice)
        verdicts.append((running_pod, decide_resize(host, running_pod, workload.pod)))
    release = host.settings.release
    if output == "text":
        for running_pod, verdict in verdicts:
            terminal.print_lines(paragraph(f"{verdict.describe(running_pod)} (Kubernetes {release.describe()})"))
    else:
        resizes = [
            {
                "pod": f"{running_pod.namespace}/{running_pod.name}",
                "outcome": str(verdict.outcome),
                "code": verdict.code,
                "message": verdict.message,
            }
            for running_pod, verdict in verdicts
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
    refusal: Refusal | None = None  #: why the node does not meet what the pod demands
    policies: tuple[PolicyOutcome, ...] = ()  #: empty: not asked for

    @property
    def admitted(self) -> bool:
        """Whether the pod is admitted with every random choice."""
        admitted = all(decision.admitted for decision in (self.decision, *self.others))
        certain = admitted and not self.decision.may_be_rejected
        return certain and (not self.missing or self.lenient) and self.refusal is None

    @property
    def code(self) -> str:
        """The reason code of a rejection, or of a possible rejection; empty: the pod is admitted."""
        if self.missing and not self.lenient:
            return NOT_SCHEDULABLE
        if self.decision.rejection is not None:
            return self.decision.rejection.reason
        return "" if self.admitted else MAY_BE_REJECTED

    @property
    def verdict(self) -> str:
        if not self.missing or self.lenient:
            verdict = sentences.verdict(self.decision)
            return f"{verdict} by the kubelet, but not as its annotations demand" if self.refusal else verdict
        return sentences.not_schedulable(self.workload.pod, self.missing)

    def with_policies(self, host: Host) -> "Explanation":
        return self._replace(policies=tuple(policy_outcomes(host, self.workload.pod)))


def explain(
    host: Host, workload: Workload, *, seconds: float, lenient: bool = False, claims: "HostClaims | None" = None
) -> Explanation:
    """Decide on one replica of *workload*; for a rejected replica, search up to *seconds* for changes that admit it."""
    with inputs.input_errors(Place.at(workload.source)):
        if claims is not None and not workload.host:
            workload = replace(workload, pod=claims.objects.with_class_resources(workload.pod))
        ours = not host.settings.kubelet_faults  # what we do ourselves is certain
        decision = host.decide(workload.pod) if ours else host.predict(workload.pod)
        random = any(step.rule is MergeRule.RANDOM for step in decision.steps)
        others = islice(host.possible_decisions(workload.pod), 1, _MAX_DECISIONS) if random else ()
        missing_devices = host.missing_devices(workload.pod)
        safe = decision if ours else host.without_faults().predict(workload.pod)
        explained_claims = claims.explain(workload.pod, decision.placements, host) if claims is not None else ()
        explanation = Explanation(
            workload,
            decision,
            missing=missing_devices,
            lenient=lenient,
            defects=tuple(sentences.describe_defects(decision, safe)),
            claims=explained_claims,
            others=tuple(others),
            device_choices=_device_choices(host, decision),
            refusal=None if ours else find_refusal(host, workload.pod, decision, claims=explained_claims),
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
    if explanation.policies:
        yield from section("Policies")
        yield from table([_policy_row(outcome) for outcome in explanation.policies], _POLICY_HEADS)


_POLICY_HEADS = ("POLICY", "AS DEMAND", "AS POLICY OF THE NODE")


def _policy_row(outcome: PolicyOutcome) -> tuple[str, str, str]:
    return str(outcome.policy), "not met" if outcome.refusal else "met", outcome.by_kubelet


def _verdict_lines(explanation: Explanation, say: Callable[[str], str]) -> Iterator[Line]:
    decision = explanation.decision
    yield from paragraph(say(explanation.verdict), style="title" if explanation.admitted else "fail")
    if explanation.missing:
        yield from paragraph(_other_verdict(explanation))
    if decision.rejection and say is str:
        yield from paragraph(decision.rejection.message)
    if refusal := explanation.refusal:
        yield from paragraph(say(refusal.reason), style="warn")
        yield from paragraph(say(refusal.detail)) if refusal.detail else ()
    for other in explanation.others:
        nodes = ", ".join(dict.fromkeys(sentences.format_hint(step.hint) for step in other.steps))
        allocations = sentences.describe_allocations(other.placements) if other.admitted else ""
        yield from paragraph(
            f"Or, at random, on {nodes}: {': '.join(filter(None, (sentences.verdict(other), allocations)))}"
        )
    if possible := sentences.describe_possible_rejection(decision):
        yield from paragraph(f"{possible[0].upper()}{possible[1:]}")
    for defect in explanation.defects:
        yield from paragraph(f"This is {defect}", style="warn")


def _other_verdict(explanation: Explanation) -> str:
    """Return the verdict that does not count: of the kubelet, or of a scheduler."""
    if explanation.lenient:
        return f"For a scheduler: {sentences.not_schedulable(explanation.workload.pod, explanation.missing)}"
    device_options = " ".join(f"--devices {name}=..." for name in explanation.missing)
    return (
        f"The kubelet ignores such requests: {sentences.verdict(explanation.decision)} "
        f"(to decide like it: --ignore-missing-devices; to declare the devices: {device_options})"
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
            "code": explanation.code,
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
            "unmetDemand": explanation.refusal._asdict() if explanation.refusal else None,
            "policies": [outcome.to_document() for outcome in explanation.policies],
            "notes": [
                *filter(None, [node.defaults]),
                *node.notes,
                *sentences.ignored_requests(node.host, [explanation.workload.pod]),
            ],
        }
        for explanation in explanations
    ]
    return {"version": VERSION, **node.host.settings.release.to_document(), "answers": answers}
