"""Changes that admit a rejected pod, each proved by a new decision.

    remedies = find_remedies(host, pod)
    for proposal in remedies.proposals:
        changed_host, changed_pod = proposal.apply(host, pod)      # copies: the originals stay as they are
        assert changed_host.decide(changed_pod).admitted

The search covers other amounts of one resource (``amounts``), other settings and reservations (``host_changes``), and
evictions (``evictions``). It runs until *should_stop* returns true; ``unsearched`` then lists what was not tried.
"""

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import NamedTuple

from alignup.align.devices.provider import PreferenceAnswers
from alignup.align.explain.amounts import nearest_amounts, requested_amounts
from alignup.align.explain.changes import (
    Eviction,
    Proposal,
    RequestChange,
    ReservationChange,
    SearchTimeoutError,
    SettingChange,
    WhatIf,
)
from alignup.align.explain.evictions import smallest_eviction
from alignup.align.explain.host_changes import reservation_changes, setting_changes
from alignup.align.host import Host
from alignup.align.workload import Pod

_ORDER = (RequestChange, SettingChange, Eviction, ReservationChange)  #: least disruptive first


class Remedies(NamedTuple):
    """The proposals, most useful first, and sentences about what was not searched."""

    proposals: tuple[Proposal, ...] = ()
    unsearched: tuple[str, ...] = ()


def find_remedies(
    host: Host, pod: Pod, *, answers: PreferenceAnswers | None = None, should_stop: Callable[[], bool] = lambda: False
) -> Remedies:
    """Return proposals that admit *pod* on *host*; none if the pod is not rejected.

    *answers* are the preferred allocations that device plugins returned. *should_stop* is called before each decision.
    """
    what_if = WhatIf(host, pod, answers=answers or {}, should_stop=should_stop)
    rejection = what_if.decision.rejection
    if rejection is None or (rejection.provider == "host" and not rejection.shortfalls):
        return Remedies()  # admitted, or made for another operating system
    proposals: list[Proposal] = []
    for section, candidates in _sections(what_if):
        try:
            proposals.extend(candidates)  # keeps what was found before a timeout
        except SearchTimeoutError:
            what_if.note_unsearched(f"Time ran out before all {section} were tried.")
    return Remedies(tuple(sorted(proposals, key=_usefulness)), tuple(what_if.unsearched))


def _sections(what_if: WhatIf) -> Iterator[tuple[str, Iterator[Proposal]]]:
    """Yield everything to search, by name: the likely and quick searches first."""
    rejection = what_if.decision.rejection
    short = {shortfall.resource for shortfall in rejection.shortfalls} if rejection else set()
    # The sort is stable: resources that fell short come first, the others keep the pod's order.
    requests = sorted(requested_amounts(what_if.host, what_if.pod), key=lambda request: request.resource not in short)
    amounts = [
        (f"other amounts of {request.resource} for {request.subject}", nearest_amounts(what_if, request))
        for request in requests
    ]
    likely = len([request for request in requests if request.resource in short])
    yield from amounts[:likely]
    yield "other settings", setting_changes(what_if)
    yield from amounts[likely:]
    yield "other reservations", reservation_changes(what_if)
    yield "evictions", smallest_eviction(what_if)  # the only slow one


def _usefulness(proposal: Proposal) -> tuple[int, Fraction]:
    """Return the sort key: the kind of change, then how far a request is from the original."""
    change = proposal.changes[0]
    away = Fraction(abs(change.now - change.was), change.was) if isinstance(change, RequestChange) else Fraction(0)
    return _ORDER.index(type(change)), away
