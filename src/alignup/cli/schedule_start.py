"""Start the cluster service as ``alignup schedule`` was told."""

import asyncio
import os
import socket
import uuid
from pathlib import Path

import click

from alignup.cli.cluster_client import api_errors
from alignup.cli.inputs import parse_plugin_rules
from alignup.cli.options import check_exists, parse_listen_address
from alignup.cli.schedule import GateCommandOptions, ScheduleCommandOptions
from alignup.kubernetes.api import find_access
from alignup.kubernetes.api.access import pod_namespace
from alignup.placement.scheduling.options import ExtenderOptions, GateOptions
from alignup.schedule import service
from alignup.schedule.gate.admission import SCHEDULERS
from alignup.schedule.gate.service import GateServiceOptions, WebhookOptions, schedule_with_gate
from alignup.schedule.live_cluster_options import LiveClusterOptions
from alignup.schedule.service import LeaseOptions, ScheduleOptions
from alignup.web.address import TcpAddress
from alignup.web.log import log_to_stderr


def run(options: ScheduleCommandOptions, gate: GateCommandOptions) -> None:
    _prepare_directory(options.record)
    service_options = _schedule_options(options)
    gate_options = _gate_options(gate, namespace=_namespace(options))
    if not options.extender and not gate.gate:
        raise click.UsageError("--no-extender needs --gate: nothing would be placed.")
    log_to_stderr()
    with api_errors():
        access = find_access(options.kubeconfig, context=options.context)
    if gate_options is None:
        asyncio.run(service.schedule(access, service_options))
    else:
        asyncio.run(schedule_with_gate(access, service_options, gate_options))


def _schedule_options(options: ScheduleCommandOptions) -> ScheduleOptions:
    listen = parse_listen_address(options.listen, "--listen")
    _check_security(options, listen)
    check_exists(options, "tls_cert_file", "tls_private_key_file", "client_ca_file", "token_file")
    health = None
    if options.health_listen is not None:
        health = parse_listen_address(options.health_listen, "--health-listen").pair
    return ScheduleOptions(
        listen=listen.pair,
        health=health,
        certificate=options.tls_cert_file,
        private_key=options.tls_private_key_file,
        client_authority=options.client_ca_file,
        token_file=options.token_file,
        any_client=options.any_client,
        names=options.allowed_hosts,
        lease=_lease(options) if options.leader_elect else None,
        kueue=options.kueue,
        plans=options.plans,
        serves_extender=options.extender,
        extender=ExtenderOptions(
            offered=options.offered,
            allow_unknown=options.allow_unknown,
            patience=options.patience,
            patience_limit=options.patience_limit,
            schedulers=frozenset(options.scheduler_name) or SCHEDULERS,
            steer_hold=options.steer_hold,
            chooses_victims={"auto": None, "yes": True, "no": False}[options.choose_victims],
        ),
        live=LiveClusterOptions(
            max_unconfirmed=options.unconfirmed,
            force_deleted_may_run=options.force_deleted_may_run,
            approximate=options.approximate,
            plugin_rules=parse_plugin_rules(options.plugin_rules),
            record=options.record,
        ),
    )


def _prepare_directory(directory: Path | None) -> None:
    """Create the directory of recordings, which only this user may read."""
    if directory is None:
        return
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"--record: cannot create directory {directory}: {error.strerror}.") from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise click.UsageError(f"--record: cannot write to directory {directory}: permission denied.")


def _lease(options: ScheduleCommandOptions) -> LeaseOptions:
    return LeaseOptions(namespace=_namespace(options), identity=f"{socket.gethostname()}_{uuid.uuid4()}")


def _namespace(options: ScheduleCommandOptions) -> str:
    return options.lease_namespace or os.environ.get("POD_NAMESPACE") or pod_namespace() or "kube-system"


def _check_security(options: ScheduleCommandOptions, listen: TcpAddress) -> None:
    """Clients of the extender can bind pods, so strangers on the network must not be clients."""
    with_tls = options.tls_cert_file is not None
    if with_tls != (options.tls_private_key_file is not None):
        raise click.UsageError("--tls-cert-file and --tls-private-key-file need each other.")
    if options.client_ca_file is not None and not with_tls:
        raise click.UsageError("--client-ca-file needs --tls-cert-file and --tls-private-key-file.")
    if with_tls and options.insecure_http:
        raise click.UsageError("--insecure-http contradicts --tls-cert-file.")
    if listen.is_loopback:
        return
    if not with_tls and not options.insecure_http:
        raise click.UsageError("--listen on the network needs --tls-cert-file, or --insecure-http.")
    if options.client_ca_file is None and options.token_file is None and not options.any_client:
        raise click.UsageError(
            "--listen on the network needs --client-ca-file, because clients can bind pods, or --token-file, or "
            "--any-client."
        )


def _gate_options(options: GateCommandOptions, *, namespace: str) -> GateServiceOptions | None:
    """Return what gate and webhook are given, *namespace* being that of its Service; ``None``: there are none."""
    if (options.webhook_cert_file is None) != (options.webhook_private_key_file is None):
        raise click.UsageError("--webhook-cert-file and --webhook-private-key-file need each other.")
    check_exists(options, "webhook_cert_file", "webhook_private_key_file")
    if not options.gate and options.webhook_listen is None:
        return None

    webhook = None
    if options.webhook_listen is not None:
        webhook = WebhookOptions(
            listen=parse_listen_address(options.webhook_listen, "--webhook-listen").pair,
            namespace=namespace,
            service=options.webhook_service,
            certificate=options.webhook_cert_file,
            private_key=options.webhook_private_key_file,
        )
    controller = None
    if options.gate:
        controller = GateOptions(
            patience=options.gate_patience,
            unbound=options.gate_bind_timeout,
            schedulers=frozenset(options.gate_scheduler) or SCHEDULERS,
            replace_stuck=options.gate_replace_stuck,
        )
    return GateServiceOptions(webhook=webhook, controller=controller)
