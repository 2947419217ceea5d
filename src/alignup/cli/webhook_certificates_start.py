"""What ``alignup webhook-certificates`` needs libraries of an extra for."""

import click

from alignup.cli.app import FailureError
from alignup.cli.cluster_access import AccessOptions
from alignup.cli.cluster_client import api_errors, ask
from alignup.cli.webhook_certificates import CertificateOptions
from alignup.kubernetes.api import ApiClient
from alignup.kubernetes.api.errors import NotFoundError
from alignup.schedule.gate.authority_installation import (
    WARNING_CONFIGURATIONS,
    WEBHOOK_CONFIGURATIONS,
    install_authority,
)
from alignup.schedule.gate.certificates import SECRETS, WebhookCertificates, authority_expiry

_PERMISSIONS = (
    "It needs permission to create secrets, to get and patch the one of the webhook, and to get and patch the webhook "
    "configurations; deploy/kubernetes/gate/certificates.yaml grants them."
)


def install(options: CertificateOptions, access: AccessOptions) -> None:
    async def write(client: ApiClient, default_namespace: str) -> WebhookCertificates:
        namespace = options.namespace or default_namespace
        return await install_authority(
            client,
            secret=SECRETS.at(options.secret, namespace=namespace),
            configuration=WEBHOOK_CONFIGURATIONS.at(options.configuration),
            names=(f"{options.service}.{namespace}.svc",),
            warnings=WARNING_CONFIGURATIONS.at(options.warning_configuration),
        )

    try:
        with api_errors(_PERMISSIONS):
            certificates = ask(access, write, log_level="info")
    except NotFoundError as error:
        advice = "Create the namespace and the webhook configuration first: kubectl apply -k deploy/kubernetes/schedule"
        raise FailureError(str(error), advice=advice) from error
    click.echo(f"API servers trust the authority until {authority_expiry(certificates):%Y-%m-%d}.")
