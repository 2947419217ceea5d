"""The output of ``alignup why``."""

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from alignup.align.decision import Decision
from alignup.align.explain import sentences
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.cli import inputs, terminal
from alignup.cli.inputs import HostInput
from alignup.cli.layout import paragraph, section
from alignup.kubernetes.manifests.workloads import Workload
from alignup.picture.cells import Cell, Line
from alignup.picture.decision_text import draw_decision

if TYPE_CHECKING:
    from alignup.align.explain.changes import Proposal

VERSION = 1  #: of the JSON document


class Explanation(NamedTuple):
    workload: Workload
    decision: Decision  #: of the kubelet, which ignores requests for missing devices
    proposals: "tuple[Proposal, ...]" = ()  #: changes that admit a rejected pod
    unsearched: tuple[str, ...] = ()  #: what was not searched for more of them
    missing: tuple[str, ...] = ()  #: requested resources that no device plugin provides
    lenient: bool = False  #: whether the kubelet's decision counts regardless of missing devices

    @property
    def schedulable(self) -> bool:
        return not self.missing

    @property
    def admitted(self) -> bool:
        return self.decision.admitted and (self.schedulable or self.lenient)

    @property
    def verdict(self) -> str:
        if self.schedulable or self.lenient:
            return sentences.verdict(self.decision)
        return sentences.not_schedulable(self.workload.pod, self.missing)


def explain(host: Host, workload: Workload, *, seconds: float, lenient: bool = False) -> Explanation:
    """Decide on one replica of *workload*; if it is rejected, search up to *seconds* for changes that admit it."""
    with inputs.input_errors(f"in {workload.source}"):
        decision = host.decide(workload.pod)
        missing = host.missing_devices(workload.pod)
        if decision.admitted:
            return Explanation(workload, decision, missing=missing, lenient=lenient)
        from alignup.align.explain.remedies import find_remedies  # noqa: PLC0415 - slow to import

        end = time.monotonic() + seconds
        remedies = find_remedies(host, workload.pod, should_stop=lambda: time.monotonic() > end)
    return Explanation(workload, decision, remedies.proposals, remedies.unsearched, missing, lenient)


def print_text(host: Host, explanations: Sequence[Explanation]) -> None:
    lines: list[Line] = []
    for explanation in explanations:
        lines += [(), (Cell("─" * terminal.width(), "frame"),), ()] if lines else []
        lines += _lines(host, explanation)
    terminal.print_lines(lines)


def _lines(host: Host, explanation: Explanation) -> Iterator[Line]:
    decision = explanation.decision
    if explanation.workload.template:
        yield from paragraph(f"{explanation.workload.kind} {explanation.workload.title}", style="dim")
    yield from paragraph(explanation.verdict, style="title" if explanation.admitted else "warn")
    if explanation.missing:
        yield from paragraph(_other_verdict(explanation))
    if decision.rejection:
        yield from paragraph(decision.rejection.message)
    yield from paragraph(sentences.describe_rules(decision), style="dim")
    yield from draw_decision(host, explanation.workload.pod, decision, width=terminal.width())
    if decision.rejection:
        yield from section("What does not fit", sentences.describe_rejection(decision))
        yield from _proposal_lines(explanation, host.ledger)


def _other_verdict(explanation: Explanation) -> str:
    """The verdict that does not count: of the kubelet, or of a scheduler."""
    if explanation.lenient:
        return f"For a scheduler: {sentences.not_schedulable(explanation.workload.pod, explanation.missing)}"
    declared = " ".join(f"--devices {name}=..." for name in explanation.missing)
    return (
        f"The kubelet ignores such requests: {sentences.verdict(explanation.decision)} "
        f"(to decide like it: --ignore-missing-devices; to declare the devices: {declared})"
    )


def _proposal_lines(explanation: Explanation, ledger: Ledger) -> Iterator[Line]:
    proposals = explanation.proposals
    if proposals:
        yield from section("What would admit it (each change was tried)")
    else:
        yield from section("What would admit it", ["no single change that was tried"])
    for proposal in proposals:
        yield from paragraph(proposal.describe(ledger), prefix="  - ")
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
            "schedulable": explanation.schedulable,
            "missingDevices": list(explanation.missing),
            "kubeletVerdict": sentences.verdict(explanation.decision),
            "decision": decisions.to_document(explanation.decision),
            "misfits": list(sentences.describe_rejection(explanation.decision)),
            "proposals": [proposal.to_document(node.host.ledger) for proposal in explanation.proposals],
            "unsearched": list(explanation.unsearched),
            "notes": [*node.notes, *sentences.ignored_requests(node.host, [explanation.workload.pod])],
        }
        for explanation in explanations
    ]
    return {"version": VERSION, "answers": answers}
