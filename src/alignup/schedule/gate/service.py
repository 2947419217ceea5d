"""The gate beside the cluster service: the webhook, which every replica serves, and the controller of the leader.

The webhook can be served without the gate, for pods that opt in to steering.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog

from alignup.kubernetes.api import Access
from alignup.placement.scheduling.options import GateOptions
from alignup.schedule.gate.admission import answer_review, webhook_app
from alignup.schedule.gate.certificates import SECRETS, CertificateKeeper
from alignup.schedule.gate.controller import GateController
from alignup.schedule.gate.marker_admission import MarkerReviews
from alignup.schedule.gate.metrics import GateMetrics
from alignup.schedule.gate.missed_pods import MissedPods
from alignup.schedule.gate.warning_admission import WarningReviews
from alignup.schedule.service import ScheduleOptions, ScheduleService, open_service
from alignup.web.asgi_server import ServerLimits, kubernetes_limits, run_until_signal, serve_app
from alignup.web.sockets import ServerCertificate, tcp_socket

WEBHOOK_PATH, STEER_PATH, WARN_PATH = "/v1/gate", "/v1/steer", "/v1/warn"

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookOptions:
    """The address of the webhook, and the objects of the API server by which it is known."""

    listen: tuple[str, int]  #: host and port
    namespace: str  #: of the Service and the Secret
    service: str = "alignup-webhook"
    secret: str = "alignup-webhook"  # noqa: S105 - the name of an object
    certificate: Path | None = None  #: such as cert-manager's, in files; ``None``: our own, in the Secret
    private_key: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateServiceOptions:
    webhook: WebhookOptions | None = None  #: ``None``: pods have the gate from elsewhere, such as their manifests
    controller: GateOptions | None = field(default_factory=GateOptions)  #: ``None``: there is no gate


class WebhookServer(NamedTuple):
    """The webhook of one process, which listens already."""

    listener: socket.socket
    certificate: CertificateKeeper | ServerCertificate
    answers: Mapping[str, Callable[[bytes], bytes]]  #: to reviews, by path
    limits: ServerLimits

    async def run(self) -> None:
        """Serve the webhook until cancelled."""
        app, tls, stopping = webhook_app(self.answers), self.certificate.context, asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            if isinstance(self.certificate, CertificateKeeper):
                tasks.create_task(self.certificate.run())
                await self.certificate.ready.wait()
            async with serve_app(app, self.listener, stopping=stopping, limits=self.limits, tls=tls):
                _log.info("serving the webhook", at="{}:{}".format(*self.listener.getsockname()[:2]))
                await asyncio.Event().wait()


async def schedule_with_gate(access: Access, options: ScheduleOptions, gate: GateServiceOptions) -> None:
    """Run the cluster service with the gate until SIGTERM or SIGINT; ``ListenError`` if it cannot listen."""
    async with open_service(access, options) as service:
        with add_gate(service, gate):
            await run_until_signal(service.run())


@contextmanager
def add_gate(service: ScheduleService, options: GateServiceOptions) -> Iterator[WebhookServer | None]:
    """Let *service* run the gate as well; yield its webhook. ``ListenError`` if that cannot be served."""
    client, metrics = service.client, GateMetrics(service.metrics.registry)
    warnings = WarningReviews(service.live, metrics.warned)
    markers = MarkerReviews(service.live, lambda outcome: service.steering.metrics.reviews.labels(outcome).inc())
    answers = {
        STEER_PATH: markers.answer,
        WARN_PATH: warnings.answer,
    }
    if options.controller is not None:
        gate = options.controller
        controller = GateController(client, service.live, metrics=metrics, options=gate)
        service.leader_tasks.append(controller.run)
        answers[WEBHOOK_PATH] = partial(answer_review, count=metrics.reviewed, schedulers=gate.schedulers)
    webhook = options.webhook
    if webhook is not None and options.controller is not None:
        missed_pods = MissedPods(client, service.live, metrics, schedulers=options.controller.schedulers)
        service.leader_tasks.append(missed_pods.run)
    if webhook is None:
        yield None
        return
    certificate: CertificateKeeper | ServerCertificate
    if webhook.certificate is not None and webhook.private_key is not None:
        certificate = ServerCertificate(webhook.certificate, webhook.private_key)
    else:
        certificate = CertificateKeeper(
            client,
            secret=SECRETS.at(webhook.secret, namespace=webhook.namespace),
            names=(f"{webhook.service}.{webhook.namespace}.svc",),
            loaded=metrics.certificate,
        )
    with tcp_socket(webhook.listen[1], webhook.listen[0]) as listener:
        webhook_server = WebhookServer(listener, certificate, answers, kubernetes_limits())
        service.tasks += [webhook_server.run, partial(service.live.guard.keep_running, "warnings", warnings.run)]
        yield webhook_server
