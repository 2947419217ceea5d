"""``alignup schedule``: tell schedulers which nodes will admit a pod."""

import asyncio
import os
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from alignup.cli.app import Session, define_command
from alignup.cli.cluster_access import api_errors
from alignup.cli.options import (
    IntegerRange,
    NumberRange,
    allowed_host_option,
    check_exists,
    choice_option,
    count_option,
    flag_option,
    option,
    parse_listen_address,
    path_option,
    with_options,
)
from alignup.web.address import TcpAddress

if TYPE_CHECKING:
    from alignup.schedule.gate.service import GateServiceOptions
    from alignup.schedule.service import LeaseOptions, ScheduleOptions

_LISTEN = "127.0.0.1:8890"
_SERVICE = "alignup-webhook"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleCommandOptions:
    kubeconfig: Path | None = path_option("FILE", "Access to the API server", "kubectl's, or that of this pod")
    context: str = option("NAME", "Context in the kubeconfig", "the current one", default="")
    listen: str = option("HOST:PORT", "Address for schedulers", _LISTEN, default=_LISTEN)
    health_listen: str | None = option(
        "HOST:PORT", "Serve /healthz, /readyz and /metrics without TLS, for example on :9185", "do not"
    )
    tls_cert_file: Path | None = path_option(
        "FILE", "Serve HTTPS with the certificates in FILE (PEM); read again when it changes"
    )
    tls_private_key_file: Path | None = path_option("FILE", "Private key of the certificate (PEM)")
    client_ca_file: Path | None = path_option("FILE", "Require certificates of the authority in FILE from clients")
    token_file: Path | None = path_option("FILE", "Require the token in FILE from clients")
    allowed_hosts: tuple[str, ...] = allowed_host_option()
    insecure_http: bool = flag_option("Serve HTTP without TLS on non-loopback addresses")
    any_client: bool = flag_option("Serve clients without certificate or token; who can connect can bind pods")
    extender: bool = option(
        "",
        "Answer schedulers; without, only pods behind the gate are placed",
        "--extender",
        "--extender/--no-extender",
        is_flag=True,
        default=True,
    )
    offered: int | None = option(
        "N",
        "Nodes that a scheduler may choose from, at most",
        "16 for pods with preferences, such as spreading, and 1 for others",
        type=IntegerRange(min=1),
    )
    unconfirmed: int = count_option(
        1, "Pods with resources of their own that a node may get before its HostState shows them", minimum=1
    )
    patience: int = count_option(60, "Seconds after which a node is kept for a pod that others overtake", minimum=1)
    patience_limit: int = count_option(
        900, "Seconds for which nodes kept for a namespace may keep pods of others out; then it loses them", minimum=1
    )
    scheduler_name: tuple[str, ...] = option(
        "NAME",
        "Scheduler whose pods get places and kept nodes; others must have asked in the last ten minutes",
        "default-scheduler",
        multiple=True,
    )
    choose_victims: str = choice_option(
        ["auto", "yes", "no"],
        "Whether the scheduler lets extenders choose the pods to evict, as kube-scheduler does from 1.38 on",
        "auto: by the version of the API server",
    )
    allow_unknown: bool = flag_option("Let pods go to nodes without HostState, whose kubelets may reject them")
    approximate: bool = flag_option("Judge nodes without HostState by their NodeResourceTopology, if it is safe")
    force_deleted_may_run: bool = flag_option("Treat containers of force-deleted pods as possibly still running")
    kueue: bool = flag_option("Answer Kueue's admission checks of alignup.dev/admission-check (docs/gangs.md)")
    steer_hold: float = option(
        "SECONDS",
        "The --steer-hold of the observers",
        "5",
        type=NumberRange(min=1, max=60),
        default=5.0,
    )
    record: Path | None = path_option(
        "DIR", "Record decisions in DIR, to replay them in tests; the files name pods and nodes (docs/scheduling.md)"
    )
    leader_elect: bool = option(
        "",
        "Let one of several processes answer, chosen by a Lease",
        "--leader-elect",
        "--leader-elect/--no-leader-elect",
        is_flag=True,
        default=True,
    )
    lease_namespace: str | None = option("NAME", "Namespace of the Lease", "that of this pod, or kube-system")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCommandOptions:
    gate: bool = flag_option("Choose nodes for pods behind the scheduling gate alignup.dev/placement (docs/gate.md)")
    gate_patience: int = count_option(60, "Seconds after which a node is kept for a pod that others overtake")
    gate_bind_timeout: int = count_option(30, "Seconds after which a release that is not bound gives its slot back")
    gate_scheduler: tuple[str, ...] = option(
        "NAME", "Scheduler that gated pods are released to", "default-scheduler", multiple=True
    )
    gate_replace_stuck: bool = flag_option("Evict released pods that are not scheduled, if they will be created again")
    webhook_listen: str | None = option(
        "HOST:PORT", "Serve the webhook that adds the gate and markers to pods, for example on :8443", "do not"
    )
    webhook_service: str = option("NAME", "Service by which API servers call the webhook", default=_SERVICE)
    webhook_cert_file: Path | None = path_option(
        "FILE", "Certificates of the webhook (PEM)", "its own, in the Secret alignup-webhook"
    )
    webhook_private_key_file: Path | None = path_option("FILE", "Private key of the certificate (PEM)")


@define_command(
    "schedule",
    "alignup schedule --listen 127.0.0.1:8890 --no-leader-elect",
    "alignup schedule --kubeconfig admin.conf",
    "alignup schedule --gate --record /var/lib/alignup/decisions",
)
@with_options("options", ScheduleCommandOptions)
@with_options("gate", GateCommandOptions)
@click.pass_obj
def command(session: Session, *, options: ScheduleCommandOptions, gate: GateCommandOptions) -> None:
    """Tell schedulers which nodes will admit a pod, so that no kubelet rejects it.

    It follows nodes, pods and the HostState objects of 'alignup observe', and predicts the decision of every kubelet.
    kube-scheduler asks it as an extender, at http://HOST:PORT/v1/extender with the verbs filter, prioritize, bind and
    preempt; docs/scheduling.md has the configuration. GET /v1/explain/NAMESPACE/POD lists the answers of all nodes.
    Where the scheduler cannot be configured, --gate chooses nodes for pods behind a scheduling gate.

    It runs until SIGTERM or Ctrl-C. The exit code is 1 when it cannot start, and 2 when the input is invalid.
    """
    from alignup.kubernetes.api import find_access  # noqa: PLC0415
    from alignup.schedule import service  # noqa: PLC0415 - not needed for --help
    from alignup.web.log import log_to_stderr  # noqa: PLC0415

    session.advice = "See 'alignup schedule --help'."
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
        from alignup.schedule.gate.service import schedule_with_gate  # noqa: PLC0415 - only if it is asked for

        asyncio.run(schedule_with_gate(access, service_options, gate_options))


def _schedule_options(options: ScheduleCommandOptions) -> "ScheduleOptions":
    from alignup.placement.scheduling.options import ExtenderOptions  # noqa: PLC0415 - not needed for --help
    from alignup.schedule.gate.admission import SCHEDULERS  # noqa: PLC0415
    from alignup.schedule.live_cluster import LiveClusterOptions  # noqa: PLC0415
    from alignup.schedule.service import ScheduleOptions  # noqa: PLC0415

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


def _lease(options: ScheduleCommandOptions) -> "LeaseOptions":
    from alignup.schedule.service import LeaseOptions  # noqa: PLC0415 - not needed for --help

    return LeaseOptions(namespace=_namespace(options), identity=f"{socket.gethostname()}_{uuid.uuid4()}")


def _namespace(options: ScheduleCommandOptions) -> str:
    from alignup.kubernetes.api.access import pod_namespace  # noqa: PLC0415 - not needed for --help

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


def _gate_options(options: GateCommandOptions, *, namespace: str) -> "GateServiceOptions | None":
    """Return what gate and webhook are given, *namespace* being that of its Service; ``None``: there are none."""
    if (options.webhook_cert_file is None) != (options.webhook_private_key_file is None):
        raise click.UsageError("--webhook-cert-file and --webhook-private-key-file need each other.")
    check_exists(options, "webhook_cert_file", "webhook_private_key_file")
    if not options.gate and options.webhook_listen is None:
        return None
    from alignup.placement.scheduling.options import GateOptions  # noqa: PLC0415
    from alignup.schedule.gate.admission import SCHEDULERS  # noqa: PLC0415 - not needed for --help
    from alignup.schedule.gate.service import GateServiceOptions, WebhookOptions  # noqa: PLC0415

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
