"""Whoever wants to hear what happened: the log, the history, metrics, and those who listen to events.

All of it is made from what happened, here, once it is durable. None of it may keep a pod from being admitted: that the
history cannot be written is said in the log, and nothing else comes of it.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from structlog.typing import FilteringBoundLogger

from alignup.agent import log as logs
from alignup.agent.pending_admission import WAITS_ITS_TURN
from alignup.agent.pod_record import Document
from alignup.agent.state import AgentEvent, EventKind
from alignup.serve.event_bus import EventBus
from alignup.serve.metrics import Metrics
from alignup.state.history import History

#: Decisions that count as the kubelet counts: one that waits is not decided on yet, one that was there is not again.
_COUNTED = (EventKind.ADMITTED, EventKind.REJECTED)


class EventDispatcher:
    """Tells everybody; called by the desk, while others live in *loop*."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        log: FilteringBoundLogger,
        history: History,
        metrics: Metrics,
        feed: EventBus,
    ) -> None:
        self._loop = loop
        self._log = log
        self._history = history
        self._metrics = metrics
        self._feed = feed
        self._complaint = ""  #: what is wrong with the history, as last said
        self._wake: Callable[[], None] | None = None

    def wake(self, somebody: Callable[[], None]) -> None:
        """Have *somebody* know whenever something has happened; called from any thread."""
        self._wake = somebody

    def __call__(self, happenings: Sequence[AgentEvent]) -> None:
        """Tell what happened; nothing is raised."""
        if self._wake is not None:
            self._wake()
        told = []
        for happening in happenings:
            logs.log_event(self._log, happening)
            document = None if happening.record is None else happening.record.to_document()
            if document is not None and happening.kind is not EventKind.KEPT:
                self._remember(document, happening.time)
            told.append((happening, event_document(happening, document)))
        with suppress(RuntimeError):  # the loop has ended, and all who listened with it
            self._loop.call_soon_threadsafe(self._publish, told)

    def _remember(self, document: Document, time: float) -> None:
        """Write a decision into the history; what is wrong with that is said once."""
        added = self._history.add(document, time=time)
        for what in filter(None, (added.note, added.problem)):
            if what != self._complaint:
                self._log.warning("history", detail=what)
        self._complaint = added.problem

    def _publish(self, happenings: Sequence[tuple[AgentEvent, Document]]) -> None:
        """Metrics and events live in the loop."""
        for happening, told in happenings:
            decision, pod = happening.decision, happening.pod
            behind = (
                decision is not None and decision.rejection is not None and decision.rejection.reason == WAITS_ITS_TURN
            )
            if happening.kind in _COUNTED and decision is not None and pod is not None and not behind:
                self._metrics.decided(decision, pod=pod, seconds=happening.seconds)
            self._feed.publish(str(happening.kind), told)


def event_document(happening: AgentEvent, document: Document | None) -> Document:
    """What happened, as those who listen are told; *document* is the decision, where there was one."""
    told: dict[str, Any] = {"source": happening.source}
    if happening.pod is not None:
        told["pod"] = {
            "uid": happening.pod.uid,
            "name": happening.pod.name,
            "namespace": happening.pod.namespace,
        }
    if document is not None:
        told["placements"] = document["placements"]
        told["rejection"] = document["rejection"]
    if happening.detail:
        told["detail"] = happening.detail
    return told
