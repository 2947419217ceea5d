"""``alignup webhook-certificates``: the authority of the webhook's certificate, for installations."""

from dataclasses import dataclass

import click

from alignup.cli.app import FailureError, define_command
from alignup.cli.cluster_access import AccessOptions
from alignup.cli.options import option, with_options

_PERMISSIONS = (
    "It needs permission to create secrets, to get and patch the one of the webhook, and to get and patch the webhook "
    "configurations; deploy/kubernetes/gate/certificates.yaml grants them."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateOptions:
    namespace: str | None = option(
        "NAME", "Namespace of the Service and the Secret", "that of this pod or of the context", "-n", "--namespace"
    )
    service: str = option("NAME", "Service by which API servers call the webhook", default="alignup-webhook")
    secret: str = option("NAME", "Secret with the certificates", default="alignup-webhook")
    configuration: str = option("NAME", "MutatingWebhookConfiguration to write to", default="alignup-gate")
    warning_configuration: str = option(
        "NAME", "ValidatingWebhookConfiguration to write to, if it exists", default="alignup-warnings"
    )


@define_command(
    "webhook-certificates",
    "alignup webhook-certificates -n alignup",
    "alignup webhook-certificates --kubeconfig admin.conf -n alignup --service alignup-webhook",
)
@with_options("options", CertificateOptions)
@with_options("access", AccessOptions)
def command(*, options: CertificateOptions, access: AccessOptions) -> None:
    """Create the authority of the webhook of 'alignup schedule --gate', and publish it to API servers.

    The installation runs it, because 'alignup schedule' has no right to webhook configurations: it renews only the
    certificate that the authority signs. The authority is valid for ten years; run the command again, at any time, to
    replace one that expires or a Secret that is unusable. With cert-manager it is not needed (docs/gate.md).

    The exit code is 1 when the API server refuses or has no such configuration, and 2 when the input is invalid.
    """
    from alignup.cli.cluster_client import api_errors, ask  # noqa: PLC0415 - its libraries are extras
    from alignup.kubernetes.api import ApiClient  # noqa: PLC0415
    from alignup.kubernetes.api.errors import NotFoundError  # noqa: PLC0415
    from alignup.schedule.gate.authority_installation import (  # noqa: PLC0415
        WARNING_CONFIGURATIONS,
        WEBHOOK_CONFIGURATIONS,
        install_authority,
    )
    from alignup.schedule.gate.certificates import SECRETS, WebhookCertificates, authority_expiry  # noqa: PLC0415

    async def install(client: ApiClient, default_namespace: str) -> WebhookCertificates:
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
            certificates = ask(access, install, log_level="info")
    except NotFoundError as error:
        advice = "Create the namespace and the webhook configuration first: kubectl apply -k deploy/kubernetes/schedule"
        raise FailureError(str(error), advice=advice) from error
    click.echo(f"API servers trust the authority until {authority_expiry(certificates):%Y-%m-%d}.")
