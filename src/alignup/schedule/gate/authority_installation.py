"""The authority of the webhook's certificate, which the installation makes and publishes.

It is written to the webhook configuration before the Secret, so that no replica signs with an authority that API
servers do not trust. Whatever interrupts it, running it again completes it.
"""

import base64
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import structlog

from alignup.align.errors import ParseError
from alignup.kubernetes.api import ApiClient, ObjectRef, PatchType, Resource
from alignup.kubernetes.api.errors import ConflictError
from alignup.kubernetes.api.objects import ObjectMeta
from alignup.kubernetes.manifests.pod_decoder import ObjectPart
from alignup.schedule.gate.certificates import (
    Secret,
    WebhookCertificates,
    authority_expiry,
    patch_secret,
    read_secret,
    renew_authority,
    secret_data,
)

ATTEMPTS = 5  #: while other runs, or replicas of the service, write the same objects

_log = structlog.get_logger()


class WebhookClient(ObjectPart, frozen=True):
    """How the API server reaches a webhook."""

    ca_bundle: str = ""  #: PEM certificates in base64


class Webhook(ObjectPart, frozen=True):
    name: str
    client_config: WebhookClient = WebhookClient()


class WebhookConfiguration(ObjectPart, frozen=True):
    """A ``MutatingWebhookConfiguration`` or ``ValidatingWebhookConfiguration``."""

    metadata: ObjectMeta = ObjectMeta()
    webhooks: tuple[Webhook, ...] = ()


WEBHOOK_CONFIGURATIONS = Resource(
    type=WebhookConfiguration,
    kind="MutatingWebhookConfiguration",
    plural="mutatingwebhookconfigurations",
    group="admissionregistration.k8s.io",
)
WARNING_CONFIGURATIONS = replace(
    WEBHOOK_CONFIGURATIONS, kind="ValidatingWebhookConfiguration", plural="validatingwebhookconfigurations"
)


async def install_authority(
    client: ApiClient,
    *,
    secret: ObjectRef[Secret],
    configuration: ObjectRef[WebhookConfiguration],
    names: Sequence[str],
    warnings: ObjectRef[WebhookConfiguration] | None = None,
) -> WebhookCertificates:
    """Make sure that the Secret has an authority that lasts, and the webhook configuration trusts it; return both.

    API servers call the webhook by one of *names*. *warnings* trusts the authority as well, if it exists.
    ``ApiError`` if it is not possible.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return await _install(client, secret, (configuration, warnings), names)
        except ConflictError:  # another run, or a replica that renewed its certificate, was faster
            continue
    return await _install(client, secret, (configuration, warnings), names)


async def _install(
    client: ApiClient,
    secret_ref: ObjectRef[Secret],
    configuration_refs: tuple[ObjectRef[WebhookConfiguration], ObjectRef[WebhookConfiguration] | None],
    names: Sequence[str],
) -> WebhookCertificates:
    secret, stored_certificates = await client.find(secret_ref), None
    if secret is not None:
        try:
            stored_certificates = read_secret(secret)
        except ParseError as error:
            _log.warning("invalid webhook certificate replaced", secret=str(secret_ref), problem=str(error))
    now = datetime.fromtimestamp(client.timing.time_of_day(), UTC)
    certificates = renew_authority(stored_certificates, names=names, now=now)
    configuration_ref, warnings_ref = configuration_refs
    await _publish(client, configuration_ref, await client.get(configuration_ref), certificates)
    if warnings_ref is not None and (warnings := await client.find(warnings_ref)) is not None:
        await _publish(client, warnings_ref, warnings, certificates)
    expires = authority_expiry(certificates).isoformat()
    if certificates == stored_certificates:
        _log.info("the authority is valid", secret=str(secret_ref), expires=expires)
        return certificates
    if secret is None:
        document = {"metadata": {"name": secret_ref.name}, "type": "Opaque", "data": secret_data(certificates)}
        await client.create(secret_ref.resource, document, namespace=secret_ref.namespace)
    else:
        await patch_secret(client, secret_ref, secret, certificates)
    _log.info("authority written", secret=str(secret_ref), expires=expires)
    return certificates


async def _publish(
    client: ApiClient,
    ref: ObjectRef[WebhookConfiguration],
    configuration: WebhookConfiguration,
    certificates: WebhookCertificates,
) -> None:
    bundle = base64.b64encode(certificates.bundle).decode()
    changes: list[dict[str, object]] = [
        {"op": "add", "path": f"/webhooks/{number}/clientConfig/caBundle", "value": bundle}
        for number, webhook in enumerate(configuration.webhooks)
        if webhook.client_config.ca_bundle != bundle
    ]
    if changes:
        version = {
            "op": "replace",
            "path": "/metadata/resourceVersion",
            "value": configuration.metadata.resource_version,
        }
        await client.patch(ref, [version, *changes], patch_type=PatchType.JSON)
        _log.info("authority published", configuration=ref.name, webhooks=len(changes))
