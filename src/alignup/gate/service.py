"""Wires the gate: the webhook and its certificates, which every replica serves, and the controller of the leader."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from alignup.gate.admission import answer_review
from alignup.gate.admission_review import SECRETS, WEBHOOK_CONFIGURATIONS
from alignup.gate.certificate_keeper import CertificateKeeper
from alignup.gate.controller import GateController
from alignup.gate.metrics import PrometheusGateMetrics
from alignup.gate.options import GateOptions
from alignup.gate.webhook_app import webhook_app
from alignup.kubernetes.api import ApiClient
from alignup.schedule.live_cluster import LiveCluster
from alignup.web.server import serve_app
from alignup.web.sockets import ServerCertificate, tcp_socket

WEBHOOK_PATH = "/v1/gate"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookOptions:
    """Where the webhook is served, and by which objects of the API server it is known."""

    listen: tuple[str, int]  #: host and port
    namespace: str  #: of the Service and the Secret
    service: str = "alignup-webhook"
    secret: str = "alignup-webhook"  # noqa: S105 - the name of an object
    configuration: str = "alignup-gate"  #: the MutatingWebhookConfiguration
    certificate: Path | None = None  #: of others, in files; ``None``: our own, in the Secret
    private_key: Path | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which API servers call the webhook."""
        return (f"{self.service}.{self.namespace}.svc",)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateServiceOptions:
    webhook: WebhookOptions | None = None  #: ``None``: pods have the gate from elsewhere, such as their manifests
    controller: GateOptions = field(default_factory=GateOptions)


class GateService:
    """The gate of one process."""

    def __init__(
        self, controller: GateController, metrics: PrometheusGateMetrics, webhook: "ServedWebhook | None" = None
    ) -> None:
        self.webhook = webhook
        self._controller, self._metrics = controller, metrics

    async def lead(self) -> None:
        """Release pods, as the only process that does, until cancelled."""
        await self._controller.run()

    async def run(self) -> None:
        """Serve the webhook until cancelled."""
        if self.webhook is None:
            return
        listener, certificate = self.webhook
        app = webhook_app(WEBHOOK_PATH, lambda body: answer_review(body, self._metrics.reviewed))
        async with AsyncExitStack() as stack:
            if isinstance(certificate, CertificateKeeper):
                await stack.enter_async_context(_kept(certificate))
            await stack.enter_async_context(serve_app(app, listener, stopping=asyncio.Event(), tls=certificate.context))
            _log.info("event=webhook listen=%s:%d", *listener.getsockname()[:2])
            await asyncio.Event().wait()


class ServedWebhook(NamedTuple):
    listener: socket.socket
    certificate: CertificateKeeper | ServerCertificate


@contextmanager
def gate_service(
    client: ApiClient, live: LiveCluster, metrics: PrometheusGateMetrics, options: GateServiceOptions
) -> Iterator[GateService]:
    """Yield the gate of this process; ``ListenError`` if the webhook cannot be served."""
    controller = GateController(client, live, metrics=metrics, options=options.controller)
    webhook = options.webhook
    if webhook is None:
        yield GateService(controller, metrics)
        return
    certificate: CertificateKeeper | ServerCertificate
    if webhook.certificate is not None and webhook.private_key is not None:
        certificate = ServerCertificate(webhook.certificate, webhook.private_key)
    else:
        certificate = CertificateKeeper(
            client,
            secret=SECRETS.at(webhook.secret, namespace=webhook.namespace),
            configuration=WEBHOOK_CONFIGURATIONS.at(webhook.configuration),
            names=webhook.names,
            renewed=metrics.certificate,
        )
    with tcp_socket(webhook.listen[1], webhook.listen[0]) as listener:
        yield GateService(controller, metrics, ServedWebhook(listener, certificate))


@asynccontextmanager
async def _kept(keeper: CertificateKeeper) -> AsyncIterator[None]:
    """Run a keeper, from when there is a certificate."""
    running = asyncio.ensure_future(keeper.run())
    try:
        await keeper.wait_ready()
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
