"""Explain decisions: as text, as HTML, and with the changes that would admit a rejected pod.

answer = alignup.explain.why(host, pod)
print(answer)                       # what "alignup why" prints
for proposal in answer.remedies:
    print(proposal.describe(host.ledger))
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from alignup.align.decision import Decision
from alignup.align.display import Row, Table, html_table
from alignup.align.explain import sentences
from alignup.align.explain.changes import Proposal
from alignup.align.explain.remedies import find_remedies
from alignup.align.host import Host
from alignup.align.workload import Pod
from alignup.picture import svg
from alignup.picture.decision_text import draw_decision
from alignup.picture.text_format import plain


@dataclass(frozen=True, slots=True, repr=False)
class PodExplanation(Table):
    """The decision on a pod, why it was made, and what would admit the pod."""

    host: Host
    pod: Pod
    decision: Decision
    remedies: tuple[Proposal, ...] = ()  #: changes that admit a rejected pod, the least disruptive first
    unsearched: tuple[str, ...] = ()  #: what was not searched for more of them

    @property
    def verdict(self) -> str:
        """The decision in one sentence."""
        return sentences.verdict(self.decision)

    @property
    def reasons(self) -> tuple[str, ...]:
        """What does not fit, one sentence each; empty for an admitted pod."""
        return sentences.describe_rejection(self.decision) if self.decision.rejection else ()

    def to_rows(self) -> list[Row]:
        """Return the rows of the decision."""
        return self.decision.to_rows()

    def _remedy_texts(self) -> list[str]:
        return [proposal.describe(self.host.ledger) for proposal in self.remedies]

    def __str__(self) -> str:
        lines = [self.verdict, sentences.describe_rules(self.decision)]
        lines += map(plain, draw_decision(self.host, self.pod, self.decision))
        if self.reasons:
            lines += ["", "What does not fit", *(f"  {sentence}" for sentence in self.reasons)]
        if self.remedies:
            lines += [
                "",
                "What would admit it (each change was tried)",
                *(f"  - {text}" for text in self._remedy_texts()),
            ]
        return "\n".join([*lines, *self.unsearched])

    def __repr__(self) -> str:
        return f"<PodExplanation: {self.verdict}>"

    def _repr_html_(self) -> str:
        items = "".join(f"<li>{escape(text)}</li>" for text in self._remedy_texts())
        return html(self.decision) + (
            f"<p>What would admit it (each change was tried):</p><ul>{items}</ul>" if items else ""
        )


def why(host: Host, pod: Pod, *, seconds: float = 2.0) -> PodExplanation:
    """Decide on *pod*, and explain the decision; nothing changes on *host*.

    For a rejected pod, changes that would admit it are searched for up to *seconds*.
    """
    decision = host.predict(pod) if host.settings.kubelet_faults else host.decide_without_plugins(pod)
    if decision.rejection is None:
        return PodExplanation(host, pod, decision)
    end = time.monotonic() + seconds
    remedies = find_remedies(host, pod, should_stop=lambda: time.monotonic() > end)
    return PodExplanation(host, pod, decision, remedies.proposals, remedies.unsearched)


def html(decision: Decision) -> str:
    """Return a decision as a fragment of HTML: the verdict, what does not fit, and what each container gets."""
    reasons = sentences.describe_rejection(decision) if decision.rejection else ()
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in reasons)
    list_html = f"<ul>{items}</ul>" if items else ""
    rules = escape(sentences.describe_rules(decision))
    heading = f"<p><b>{escape(sentences.verdict(decision))}</b><br>{rules}</p>"
    return (
        heading
        + list_html
        + html_table([{k: v for k, v in row.items() if k not in _IN_HEADING} for row in decision.to_rows()])
    )


_IN_HEADING = {"pod", "outcome"}

_STYLE = (
    "body{font-family:system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em;color-scheme:light dark}"
    "pre{overflow-x:auto;line-height:1.25}table{border-collapse:collapse}td,th{border:1px solid;padding:.2em .6em}"
    "svg{max-width:100%;height:auto}"
)


def page(answers: Sequence[PodExplanation], *, title: str = "") -> str:
    """Return explanations as one HTML file without scripts and without anything from elsewhere, for a ticket."""
    heading = escape(title or ", ".join(dict.fromkeys(answer.verdict for answer in answers)))
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    parts = [
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{heading}</title>',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        f"<style>{_STYLE}</style></head><body><h1>{heading}</h1>",
    ]
    for answer in answers:
        release = escape(answer.host.settings.release.describe())
        parts.append(f"<section>{answer._repr_html_()}<p>Kubernetes {release}</p>")
        parts.append(
            f"<details open><summary>All that was considered</summary><pre>{escape(str(answer))}</pre></details>"
        )
        parts.append(f"<details><summary>The node</summary>{svg(answer.host)}</details></section>")
    return "".join([*parts, "</body></html>\n"])
