"""Deciding again, under changes: what every search for remedies goes by.

A device plugin that wants to be asked cannot be asked here; it is taken to prefer the lowest of what it is offered.
"""

from collections.abc import Callable
from typing import Any

from alignup.align import fit
from alignup.align.decision import Decision
from alignup.align.devices import PreferenceAnswers, PreferenceRequest
from alignup.align.errors import SettingsError, StateError, WorkLimitError
from alignup.align.explain.changes import Change, Proposal, apply_changes
from alignup.align.host import Host
from alignup.align.workload import Pod


class SearchTimeoutError(Exception):
    """No more is to be tried; never leaves ``align.explain``."""


class WhatIf:
    """One pod on one host, and what was tried with it."""

    def __init__(self, host: Host, pod: Pod, *, answers: PreferenceAnswers, enough: Callable[[], bool]) -> None:
        self.host, self.pod = host, pod
        self._answers, self._enough = answers, enough
        self.unsearched: list[str] = []  #: what was not tried, and why, in sentences
        self.decision = _decided(host, pod, answers)  #: how it is without a change
        self.offered = _offered(host, pod)  #: what the providers say there is in all, by resource
        self.misfits = _misfits(host, pod, self.offered)  #: what the host as a whole has too little of

    def propose(self, *changes: Change) -> Proposal | None:
        """The proposal of these changes, if the pod is admitted under them; ``SearchTimeoutError`` when time is up."""
        self.check_time()
        try:
            host, pod = apply_changes(changes, self.host, self.pod)
            decision = _decided(host, pod, self._answers)
        except (SettingsError, StateError):
            return None
        except WorkLimitError:
            self.note_unsearched("A change that could not be decided exactly within the limit of work was left out.")
            return None
        return Proposal(changes, decision) if decision.admitted else None

    def check_time(self) -> None:
        """Nothing, as long as there is time; then ``SearchTimeoutError``."""
        if self._enough():
            raise SearchTimeoutError

    def missing(self, resource: str) -> int:
        """How much more of *resource* the host as a whole would have to have free."""
        return next((short.missing for short in self.misfits if short.resource == resource), 0)

    def note_unsearched(self, sentence: str) -> None:
        """Note, once, what is not searched."""
        if sentence not in self.unsearched:
            self.unsearched.append(sentence)


def _decided(host: Host, pod: Pod, answers: PreferenceAnswers) -> Decision:
    """What becomes of *pod*, with an answer made up for every question that has none."""
    known = dict(answers)
    while (decision := host.decide(pod, known)).asks:
        known.update((ask, _lowest(ask)) for ask in decision.asks)
    return decision


def _lowest(ask: PreferenceRequest) -> tuple[str, ...]:
    rest = [id_ for id_ in ask.available if id_ not in ask.must_include]
    return (*ask.must_include, *rest)[: ask.size]


def _offered(host: Host, pod: Pod) -> dict[str, int]:
    offered: dict[str, int] = {}
    for one in host.providers:
        book: Any = host.ledger.books[one.name]
        offered.update(one.offered(book, pod.uid))
    return offered


def _misfits(host: Host, pod: Pod, offered: dict[str, int]) -> tuple[fit.InsufficientResource, ...]:
    """Of devices there may be more in the end: a pod that holds some counts on all that are in use."""
    if host.rules.allocatable is None:
        return ()
    room = host.rules.allocatable.offering(offered)
    return fit.insufficient_resources(fit.effective_request(pod, room), used=host.ledger.used, allocatable=room)
