"""The decisions of events in the history: each is saved with the state that it led to, and gets an ID."""

from collections.abc import Sequence

from structlog.typing import FilteringBoundLogger

from alignup.agent.state import AgentEvent, AgentState, EventKind
from alignup.documents.decisions import recent_documents
from alignup.store.history import NewDecision
from alignup.store.state_store import StateStore


class EventHistory:
    """The saving of states with the decisions of events, for the queue's thread."""

    def __init__(self, store: StateStore, log: FilteringBoundLogger) -> None:
        self._store = store
        self._log = log
        self._problem = ""  #: the last one logged
        self._ids: dict[int, int] = {}  #: identity of an event that is not dispatched yet → ID of its decision

    def save(self, state: AgentState, events: Sequence[AgentEvent] = ()) -> None:
        """Return when *state* and the decisions of *events* are durable; raise ``StoreError`` if they cannot be."""
        decisions = _decisions(events)
        result = self._store.save(state.durable(), list(decisions.values()))
        if result.replaced:
            self._log.error("state", detail=result.replaced)
        self._finish(decisions, result.history_problem)

    def record(self, events: Sequence[AgentEvent]) -> None:
        """Add the decisions of *events* to the history; a problem is only logged."""
        if decisions := _decisions(events):
            self._finish(decisions, self._store.add_decisions(decisions.values()))

    def decision_id(self, event: AgentEvent) -> int | None:
        """Return the ID of the decision of *event* in the history, once; ``None`` if it has none."""
        return self._ids.pop(id(event), None)

    def _finish(self, decisions: dict[int, NewDecision], problem: str) -> None:
        """Note the IDs of decisions, or log a problem once."""
        if not problem:
            first = self._store.last_decision - len(decisions) + 1
            self._ids |= {event: first + number for number, event in enumerate(decisions)}
        elif problem != self._problem:
            self._log.warning("history", detail=problem)
        self._problem = problem


def _decisions(events: Sequence[AgentEvent]) -> dict[int, NewDecision]:
    """Return the decisions that belong into the history, by the identities of their events."""
    return {
        id(event): NewDecision(
            recent_documents.document(event.decision),
            event.time,
            str(event.kind) if event.kind is EventKind.WAITING else "",
        )
        for event in events
        if event.decision is not None and event.kind is not EventKind.KEPT
    }
