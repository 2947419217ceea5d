"""``alignup webhook-certificates``: the authority of the webhook's certificate, for installations."""

from dataclasses import dataclass

from alignup.cli.app import define_command
from alignup.cli.cluster_access import AccessOptions
from alignup.cli.options import option, with_options


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
    from alignup.cli import webhook_certificates_start  # noqa: PLC0415 - its libraries are extras

    webhook_certificates_start.install(options, access)
