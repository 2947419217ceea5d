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

from alignup.align.devices import Answers
from alignup.align.explain.amounts import Asked, asked, nearest
from alignup.align.explain.changes import (
    Change,
    Leaving,
    Proposal,
    Request,
    Reservation,
    Setting,
    Share,
    Unit,
)
from alignup.align.explain.leaving import smallest_set
from alignup.align.explain.options import other_settings
from alignup.align.explain.reservations import other_reservations
from alignup.align.explain.trials import EnoughError, Trials
from alignup.align.host import Host
from alignup.align.workload import Pod

__all__ = [
    "Change",
    "Leaving",
    "Proposal",
    "Request",
    "Reservation",
    "Search",
    "Setting",
    "Share",
    "Unit",
    "never",
    "search",
]

_ORDER = (Request, Setting, Leaving, Reservation)  #: the least trouble first


@dataclass(frozen=True, slots=True)
class Search:
    """What was found, the most useful first, and what was not searched, in sentences that say why."""

    proposals: tuple[Proposal, ...] = ()
    unsearched: tuple[str, ...] = ()


def never() -> bool:
    """Never enough: everything is tried."""
    return False


def search(host: Host, pod: Pod, *, answers: Answers | None = None, enough: Callable[[], bool] = never) -> Search:
    """What would admit *pod* on *host*; nothing for a pod that is not refused.

    *answers* are what device plugins said; others are taken to prefer the lowest of what they are offered. *enough* is
    asked before each decision.
    """
    trials = Trials(host, pod, answers=answers or {}, enough=enough)
    refusal = trials.decision.refusal
    if refusal is None or (refusal.provider == "host" and not refusal.shortfalls):
        return Search()  # it is admitted, or it is made for another system, and the host is short of nothing
    found: list[Proposal] = []
    for what, ways in _sections(trials):
        try:
            found.extend(ways)  # what came before time was up stays
        except EnoughError:
            trials.leave_out(f"Time was up before all {what} were tried.")
    return Search(tuple(sorted(found, key=_usefulness)), tuple(trials.unsearched))


def _sections(trials: Trials) -> Iterator[tuple[str, Iterator[Proposal]]]:
    """All that is looked for, with its name: what is likely to help, and soon, before what is not."""
    refusal = trials.decision.refusal
    short = {one.resource for one in refusal.shortfalls} if refusal else set()
    # The sort is stable: what somebody found too little of comes first, all else stays in the pod's order.
    questions = sorted(asked(trials.host, trials.pod), key=lambda one: one.resource not in short)
    likely = [one for one in questions if one.resource in short]
    for one in likely:
        yield _amounts_of(trials, one)
    yield "other settings", other_settings(trials)
    for one in questions[len(likely) :]:
        yield _amounts_of(trials, one)
    yield "other reservations", other_reservations(trials)
    yield "running pods that could leave", smallest_set(trials)  # only this may take long


def _amounts_of(trials: Trials, one: Asked) -> tuple[str, Iterator[Proposal]]:
    return f"other amounts of {one}", nearest(trials, one)


def _usefulness(proposal: Proposal) -> tuple[int, Fraction]:
    """Where a proposal stands: by the kind of its change, requests by how far they are from what was asked for."""
    change = proposal.changes[0]
    away = Fraction(abs(change.now - change.was), change.was) if isinstance(change, Request) else Fraction(0)
    return _ORDER.index(type(change)), away
