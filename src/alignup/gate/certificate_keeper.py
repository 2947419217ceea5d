"""The keeper of the webhook's certificates: stores them in a Secret, renews them, and publishes their authorities.

Every replica does this. Writes have the resource version of what was read, so of two replicas one wins, and the other
uses what that one has written.
"""

import asyncio
import base64
import binascii
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime

import msgspec
import structlog

from alignup.align.errors import ParseError
from alignup.gate.certificates import WebhookCertificates, expiry, renew, server_context
from alignup.kubernetes.api import ApiClient, Informer, ObjectRef, PatchType, Query, Resource
from alignup.kubernetes.api.errors import ApiError, ConflictError
from alignup.kubernetes.api.objects import ObjectMeta
from alignup.kubernetes.manifests.pod_decoder import Labels, ObjectPart

CHECK_SECONDS = 600.0  #: between checks whether a certificate must be renewed
RETRY_SECONDS = 10.0  #: after a failed write

_log = structlog.get_logger()


class Secret(ObjectPart, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    data: Labels = msgspec.field(default_factory=dict)  #: each value in base64


class WebhookClient(ObjectPart, frozen=True):
    """How the API server reaches a webhook."""

    ca_bundle: str = ""  #: PEM certificates in base64


class Webhook(ObjectPart, frozen=True):
    name: str
    client_config: WebhookClient = WebhookClient()


class WebhookConfiguration(ObjectPart, frozen=True):
    """A ``MutatingWebhookConfiguration``."""

    metadata: ObjectMeta = ObjectMeta()
    webhooks: tuple[Webhook, ...] = ()


SECRETS = Resource(type=Secret, kind="Secret", plural="secrets", namespaced=True)
WEBHOOK_CONFIGURATIONS = Resource(
    type=WebhookConfiguration,
    kind="MutatingWebhookConfiguration",
    plural="mutatingwebhookconfigurations",
    group="admissionregistration.k8s.io",
)


class CertificateKeeper:
    """The certificates of one webhook, which API servers call by *names*.

    *renewed* is called with the time when a new certificate expires.
    """

    def __init__(
        self,
        client: ApiClient,
        *,
        secret: ObjectRef[Secret],
        configuration: ObjectRef[WebhookConfiguration],
        names: Sequence[str],
        renewed: Callable[[datetime], object] = lambda _expiry: None,
    ) -> None:
        self.problems: tuple[str, ...] = ()  #: why API servers may not trust the certificate
        self._client = client
        self._secret_ref, self._configuration_ref = secret, configuration
        self._names, self._renewed = tuple(names), renewed
        named, configured = (f"metadata.name={ref.name}" for ref in (secret, configuration))
        self.secrets = Informer(client, secret.resource, Query(namespace=secret.namespace, fields=named))
        self.configurations = Informer(client, configuration.resource, Query(fields=configured))
        self.current: WebhookCertificates | None = None  #: as last loaded
        self._context: ssl.SSLContext | None = None
        self._changed = asyncio.Event()
        self.ready = asyncio.Event()  #: set when there is a certificate

    def context(self) -> ssl.SSLContext:
        """Return the TLS settings for a new connection; call it once the keeper is ready."""
        if self._context is None:
            raise RuntimeError("there is no certificate yet")
        return self._context

    @property
    def expiry(self) -> datetime | None:
        """When the serving certificate expires."""
        return expiry(self.current) if self.current else None

    async def run(self) -> None:
        """Keep the certificates valid until cancelled."""
        informers = (self.secrets, self.configurations)
        for informer in informers:
            informer.subscribe(lambda _change: self._changed.set())
        async with asyncio.TaskGroup() as tasks:
            for informer in informers:
                tasks.create_task(informer.run())
            for informer in informers:
                await informer.wait_synced()
            while True:
                self._changed.clear()
                seconds = CHECK_SECONDS if await self.check() else RETRY_SECONDS
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._changed.wait()

    async def check(self) -> bool:
        """Load, renew and publish the certificates; return whether that succeeded."""
        try:
            await self._check_secret()
            problem = await self._publish()
        except ConflictError:  # another replica was faster; its change will arrive
            problem = ""
        except ApiError as error:
            problem = str(error)
        problems = (problem,) if problem else ()
        if problem and problems != self.problems:
            _log.warning("webhook certificate not published", problem=problem)
        self.problems = problems
        return not problem

    async def _check_secret(self) -> None:
        secret = self.secrets.get(self._secret_ref.name, namespace=self._secret_ref.namespace)
        stored = None
        if secret is not None:
            try:
                stored = read_secret(secret)
            except ParseError as error:
                _log.warning("invalid webhook certificate replaced", secret=str(self._secret_ref), problem=str(error))
        now = datetime.fromtimestamp(self._client.timing.time_of_day(), UTC)
        renewed = renew(stored, names=self._names, published=self.published(), now=now)
        if renewed is not None:
            await self._write(secret, renewed)
            stored = renewed
            _log.info("webhook certificate renewed", secret=str(self._secret_ref), expires=expiry(renewed).isoformat())
        if stored is not None and stored != self.current:
            self._context = server_context(stored)
            self.current = stored
            self._renewed(expiry(stored))
            self.ready.set()

    async def _write(self, old: Secret | None, certificates: WebhookCertificates) -> None:
        data = {name: base64.b64encode(value).decode() for name, value in certificates.to_data().items()}
        ref = self._secret_ref
        if old is None:
            document = {"metadata": {"name": ref.name}, "type": "Opaque", "data": data}
            await self._client.create(ref.resource, document, namespace=ref.namespace)
        else:
            metadata = {"resourceVersion": old.metadata.resource_version}
            await self._client.patch(ref, {"metadata": metadata, "data": data})

    def published(self) -> bytes:
        """Return the authorities that every webhook of the configuration has."""
        configuration = self.configurations.get(self._configuration_ref.name)
        bundles = {webhook.client_config.ca_bundle for webhook in configuration.webhooks} if configuration else set()
        return b"" if len(bundles) != 1 else _decoded(bundles.pop())

    async def _publish(self) -> str:
        """Write the authorities to the webhook configuration; return why that is not possible."""
        configuration = self.configurations.get(self._configuration_ref.name)
        if configuration is None:
            return f"there is no {self._configuration_ref}: create it (docs/gate.md)"
        if self.current is None:
            return ""
        bundle = base64.b64encode(self.current.bundle).decode()
        operations: list[dict[str, object]] = [
            {"op": "add", "path": f"/webhooks/{number}/clientConfig/caBundle", "value": bundle}
            for number, webhook in enumerate(configuration.webhooks)
            if webhook.client_config.ca_bundle != bundle
        ]
        if operations:
            version = configuration.metadata.resource_version
            operations.insert(0, {"op": "replace", "path": "/metadata/resourceVersion", "value": version})
            await self._client.patch(self._configuration_ref, operations, patch_type=PatchType.JSON)
        return ""


def read_secret(secret: Secret) -> WebhookCertificates:
    """Read certificates; ``ParseError`` if the Secret has none."""
    return WebhookCertificates.from_data({name: _decoded(text) for name, text in secret.data.items()})


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""
