"""The options of ``alignup schedule`` for pods behind the scheduling gate."""
# ruff: noqa: RUF009 - options are declared by calls, as fields are

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from alignup.cli.listen_address import parse_listen_address
from alignup.cli.options import check_exists, count_option, flag_option, option, path_option

if TYPE_CHECKING:
    from alignup.gate.service import GateServiceOptions

_SERVICE = "alignup-webhook"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCommandOptions:
    gate: bool = flag_option("Choose nodes for pods behind the scheduling gate alignup.dev/placement (docs/gate.md)")
    gate_patience: int = count_option(60, "Seconds after which a node is kept for a pod that others overtake")
    gate_replace_stuck: bool = flag_option("Evict released pods that are not scheduled, if they will be created again")
    webhook_listen: str | None = option(
        "HOST:PORT", "Serve the webhook that adds the gate to pods, for example on :8443", "do not"
    )
    webhook_service: str = option("NAME", "Service by which API servers call the webhook", default=_SERVICE)
    webhook_cert_file: Path | None = path_option(
        "FILE", "Certificates of the webhook (PEM)", "its own, in the Secret alignup-webhook"
    )
    webhook_private_key_file: Path | None = path_option("FILE", "Private key of the certificate (PEM)")


def gate_service_options(options: GateCommandOptions, *, namespace: str) -> "GateServiceOptions | None":
    """Return what the gate is given, *namespace* being that of its Service; ``None``: there is no gate."""
    if (options.webhook_cert_file is None) != (options.webhook_private_key_file is None):
        raise click.UsageError("--webhook-cert-file and --webhook-private-key-file need each other.")
    check_exists(webhook_cert_file=options.webhook_cert_file, webhook_private_key_file=options.webhook_private_key_file)
    if not options.gate:
        if options.webhook_listen is not None:
            raise click.UsageError("--webhook-listen needs --gate: nobody would release the pods.")
        return None
    from alignup.gate.controller import GateOptions  # noqa: PLC0415 - not needed for --help
    from alignup.gate.service import GateServiceOptions, WebhookOptions  # noqa: PLC0415

    webhook = None
    if options.webhook_listen is not None:
        webhook = WebhookOptions(
            listen=parse_listen_address(options.webhook_listen, "--webhook-listen").pair,
            namespace=namespace,
            service=options.webhook_service,
            certificate=options.webhook_cert_file,
            private_key=options.webhook_private_key_file,
        )
    controller = GateOptions(patience=options.gate_patience, replace_stuck=options.gate_replace_stuck)
    return GateServiceOptions(webhook=webhook, controller=controller)
