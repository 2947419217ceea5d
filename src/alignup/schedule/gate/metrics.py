"""Metrics of the gate controller and its webhook."""

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from alignup.align.reason_codes import OTHER, find_reason
from alignup.placement.scheduling.releases import ReleaseOutcome

_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)  #: seconds


class GateMetrics:
    """The metrics of one gate, in *registry*; ``None``: in one of their own."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = self.registry = registry or CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self._reviews = counter("alignup_gate_reviews", "Reviews of new pods by the webhook, by result.", ["outcome"])
        outcomes = "Pods that were released to a node, by what became of them."
        self.releases = counter("alignup_gate_releases", outcomes, ["outcome"])
        for outcome in ReleaseOutcome:
            self.releases.labels(outcome)
        warnings = "Warnings of the webhook about pods that are created, by reason code."
        self._warnings = counter("alignup_webhook_warnings", warnings, ["reason"])
        self.missed_pods = counter("alignup_gate_missed_pods", "Pods that opted in and were created without the gate.")
        help_text = "Time that pods waited behind the gate."
        self.waits = Histogram("alignup_gate_wait_seconds", help_text, buckets=_BUCKETS, registry=registry)
        self._pods = gauge("alignup_gate_pods", "Pods behind the gate, or just released.", ["state"])
        self._reserved = gauge("alignup_gate_reserved_nodes", "Nodes that are kept for pods that have waited long.")
        self._expiry = gauge(
            "alignup_gate_certificate_expiry_timestamp_seconds", "When the certificate of the webhook expires."
        )
        self._authority_expiry = gauge(
            "alignup_gate_authority_expiry_timestamp_seconds",
            "When the authority of the webhook's certificate expires.",
        )

    def reviewed(self, outcome: str) -> None:
        self._reviews.labels(outcome).inc()

    def warned(self, code: str) -> None:
        self._warnings.labels(reason.code if (reason := find_reason(code)) else OTHER).inc()

    def follow(self, pods: Mapping[str, Callable[[], float]], *, reserved_nodes: Callable[[], float]) -> None:
        """Call functions for the present numbers: of pods by their states, and of reserved nodes."""
        for state, count in pods.items():
            self._pods.labels(state).set_function(count)
        self._reserved.set_function(reserved_nodes)

    def certificate(self, expiry: datetime, authority_expiry: datetime) -> None:
        self._expiry.set(expiry.timestamp())
        self._authority_expiry.set(authority_expiry.timestamp())
