"""What would admit a refused pod: changes, each proved by deciding again.

    found = search(host, pod)
    for proposal in found.proposals:
        changed, other = proposal.apply(host, pod)      # other values: nothing that was given changes
        assert changed.decide(other).admitted

Four kinds of change are looked for: another amount of one resource (``amounts``), another setting (``options``),
running pods that leave (``leaving``), another reservation (``reservations``). All of it takes as long as it takes; who
has no time says when it is enough, and reads in ``unsearched`` what was not tried.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from alignup.align.devices import PreferenceAnswers
from alignup.align.explain.amounts import RequestedAmount, nearest_amounts, requested_amounts
from alignup.align.explain.changes import (
    Change,
    Eviction,
    NodeReservationChange,
    Proposal,
    RequestChange,
    ReservationChange,
    SettingChange,
    Unit,
)
from alignup.align.explain.evictions import smallest_eviction
from alignup.align.explain.reservations import reservation_changes
from alignup.align.explain.setting_changes import setting_changes
from alignup.align.explain.what_if import SearchTimeoutError, WhatIf
from alignup.align.host import Host
from alignup.align.workload import Pod

__all__ = [
    "Change",
    "Eviction",
    "NodeReservationChange",
    "Proposal",
    "Remedies",
    "RequestChange",
    "ReservationChange",
    "SettingChange",
    "Unit",
    "find_remedies",
    "never",
]

_ORDER = (RequestChange, SettingChange, Eviction, ReservationChange)  #: the least trouble first


@dataclass(frozen=True, slots=True)
class Remedies:
    """What was found, the most useful first, and what was not searched, in sentences that say why."""

    proposals: tuple[Proposal, ...] = ()
    unsearched: tuple[str, ...] = ()


def never() -> bool:
    """Never enough: everything is tried."""
    return False


def find_remedies(
    host: Host, pod: Pod, *, answers: PreferenceAnswers | None = None, enough: Callable[[], bool] = never
) -> Remedies:
    """What would admit *pod* on *host*; nothing for a pod that is not refused.

    *answers* are what device plugins said; others are taken to prefer the lowest of what they are offered. *enough* is
    asked before each decision.
    """
    trials = WhatIf(host, pod, answers=answers or {}, enough=enough)
    refusal = trials.decision.refusal
    if refusal is None or (refusal.provider == "host" and not refusal.shortfalls):
        return Remedies()  # it is admitted, or it is made for another system, and the host is short of nothing
    found: list[Proposal] = []
    for what, ways in _sections(trials):
        try:
            found.extend(ways)  # what came before time was up stays
        except SearchTimeoutError:
            trials.note_unsearched(f"Time was up before all {what} were tried.")
    return Remedies(tuple(sorted(found, key=_usefulness)), tuple(trials.unsearched))


def _sections(trials: WhatIf) -> Iterator[tuple[str, Iterator[Proposal]]]:
    """All that is looked for, with its name: what is likely to help, and soon, before what is not."""
    refusal = trials.decision.refusal
    short = {one.resource for one in refusal.shortfalls} if refusal else set()
    # The sort is stable: what somebody found too little of comes first, all else stays in the pod's order.
    questions = sorted(requested_amounts(trials.host, trials.pod), key=lambda one: one.resource not in short)
    likely = [one for one in questions if one.resource in short]
    for one in likely:
        yield _amounts_of(trials, one)
    yield "other settings", setting_changes(trials)
    for one in questions[len(likely) :]:
        yield _amounts_of(trials, one)
    yield "other reservations", reservation_changes(trials)
    yield "running pods that could leave", smallest_eviction(trials)  # only this may take long


def _amounts_of(trials: WhatIf, one: RequestedAmount) -> tuple[str, Iterator[Proposal]]:
    return f"other amounts of {one}", nearest_amounts(trials, one)


def _usefulness(proposal: Proposal) -> tuple[int, Fraction]:
    """Where a proposal stands: by the kind of its change, requests by how far they are from what was asked for."""
    change = proposal.changes[0]
    away = Fraction(abs(change.now - change.was), change.was) if isinstance(change, RequestChange) else Fraction(0)
    return _ORDER.index(type(change)), away
