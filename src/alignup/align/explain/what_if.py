"""Decide again under changed conditions: the basis of every search for remedies.

Device plugins cannot be called here. A missing preferred allocation is assumed to be the lowest device ids offered.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from alignup.align import fit
from alignup.align.devices.provider import PreferenceAnswers
from alignup.align.errors import SettingsError, StateError, WorkLimitError
from alignup.align.explain.changes import Change, Proposal, apply_changes
from alignup.align.host import Host
from alignup.align.workload import Pod


class SearchTimeoutError(Exception):
    """The search is out of time; never leaves ``align.explain``."""


class WhatIf:
    def __init__(self, host: Host, pod: Pod, *, answers: PreferenceAnswers, should_stop: Callable[[], bool]) -> None:
        self.host, self.pod = host, pod
        self._answers, self._should_stop = answers, should_stop
        self.unsearched: list[str] = []  #: what was not tried and why, as sentences
        self.decision = host.decide_without_plugins(pod, answers)  #: without any change
        self.offered: dict[str, int] = {}  #: totals that the providers offer, by resource
        ledgers = host.ledger.by_provider()
        for provider in host.providers:
            self.offered.update(provider.capacity(ledgers[provider.name], pod.uid))
        self.shortfalls: tuple[fit.InsufficientResource, ...] = ()  #: what the whole host lacks
        if host.rules.allocatable is not None:
            # A pod that already holds devices may count on more of them.
            room = host.rules.allocatable.with_devices(self.offered)
            request = fit.effective_request(pod, room)
            self.shortfalls = fit.insufficient_resources(request, used=host.ledger.used, allocatable=room)

    def propose(self, *changes: Change) -> Proposal | None:
        """These changes as a proposal if they admit the pod, else ``None``."""
        self.check_time()
        try:
            host, pod = apply_changes(changes, self.host, self.pod)
            decision = host.decide_without_plugins(pod, self._answers)
        except (SettingsError, StateError):
            return None
        except WorkLimitError:
            self.note_unsearched("A change that exceeds the work limit was not tried.")
            return None
        return Proposal(changes, decision) if decision.admitted else None

    def first(
        self,
        candidates: Iterable[Sequence[Change]],
        *,
        limit: int | None = None,
        beyond: str = "",
        is_valid: Callable[[Proposal], bool] = lambda _: True,
    ) -> tuple[Proposal, ...]:
        """The first valid proposal of *candidates*, if any; *beyond* is noted if there are more than *limit*."""
        left = iter(candidates)
        for changes in islice(left, limit):
            proposal = self.propose(*changes)
            if proposal and is_valid(proposal):
                return (proposal,)
        if next(left, None) is not None:
            self.note_unsearched(beyond)
        return ()

    def check_time(self) -> None:
        if self._should_stop():
            raise SearchTimeoutError

    def missing(self, resource: str) -> int:
        return next((short.missing for short in self.shortfalls if short.resource == resource), 0)

    def note_unsearched(self, sentence: str) -> None:
        if sentence not in self.unsearched:
            self.unsearched.append(sentence)
