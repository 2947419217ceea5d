"""The dispatcher of events: to the log, the metrics and the event streams, once they are durable.

A failure here never affects an admission.
"""

import asyncio
import platform
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from structlog.typing import FilteringBoundLogger

from alignup.agent.metrics import Metrics
from alignup.agent.state import AgentEvent, Document, EventKind
from alignup.align.explain import sentences
from alignup.align.reason_codes import WAITS_ITS_TURN
from alignup.documents.decisions import recent_documents
from alignup.web.event_streams import EventBus

#: The kubelet counts these: a waiting pod is not decided on yet, and a kept pod was counted before.
_COUNTED = (EventKind.ADMITTED, EventKind.REJECTED)
_DECIDED = (*_COUNTED, EventKind.WAITING)


@dataclass(slots=True)
class EventDispatcher:
    """The function that the queue's thread calls with events; metrics and event streams belong to *loop*."""

    loop: asyncio.AbstractEventLoop
    log: FilteringBoundLogger
    metrics: Metrics
    event_bus: EventBus
    decision_id: Callable[[AgentEvent], int | None] = lambda _event: None  #: in the history

    node: str = field(default_factory=platform.node)

    def __call__(self, events: Sequence[AgentEvent]) -> None:
        documents = []
        for event in events:
            pod, decision = event.pod, event.decision
            document: dict[str, Any] = {"source": event.source, "node": self.node}
            fields: dict[str, Any] = {"detail": event.detail} if event.detail else {}
            if pod is not None:
                document["pod"] = {"uid": pod.uid, "name": pod.name, "namespace": pod.namespace}
                fields |= {
                    "pod": f"{pod.namespace}/{pod.name}",
                    "uid": pod.uid,
                    "node": self.node,
                    "source": event.source,
                }
            if decision is not None:
                decision_document, rejection = recent_documents.document(decision), decision.rejection
                if (id_ := self.decision_id(event)) is not None:
                    document["decision"] = fields["decision"] = id_
                document |= {"placements": decision_document.placements, "rejection": decision_document.rejection}
                fields["policy"] = str(decision.policy)
                if rejection is not None:
                    fields |= {"reason": rejection.reason, "message": rejection.message}
                else:
                    fields["placed"] = "; ".join(
                        f"{placement.container} on {placement.hint}: {sentences.describe_allocation(placement)}"
                        for placement in decision.placements
                    )
                fields["ms"] = round(event.seconds * 1000, 2)
            if event.detail:
                document["detail"] = event.detail
            write = self.log.warning if event.kind is EventKind.REJECTED else self.log.info
            write(str(event.kind), **fields)
            documents.append((event, document))
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._publish, documents)

    def _publish(self, documents: Sequence[tuple[AgentEvent, Document]]) -> None:
        for event, document in documents:
            if event.kind in _DECIDED:
                self.metrics.count_outcome(str(event.kind))
            if event.kind in _COUNTED and event.pod is not None and event.decision is not None:
                rejection = event.decision.rejection
                if rejection is None or rejection.reason != WAITS_ITS_TURN:
                    self.metrics.decided(event.decision, pod=event.pod, seconds=event.seconds)
            self.event_bus.publish(str(event.kind), document)
