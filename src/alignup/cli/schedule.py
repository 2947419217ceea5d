"""``alignup schedule``: tell schedulers which nodes will admit a pod."""

from dataclasses import dataclass
from pathlib import Path

import click

from alignup.cli.app import Session, define_command
from alignup.cli.options import (
    IntegerRange,
    NumberRange,
    allowed_host_option,
    choice_option,
    count_option,
    flag_option,
    option,
    path_option,
    plugin_rule_option,
    with_options,
)

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
    plans: bool = flag_option("Carry out Plan objects, which evicts pods (docs/plan.md)")
    steer_hold: float = option(
        "SECONDS",
        "The --steer-hold of the observers",
        "5",
        type=NumberRange(min=1, max=60),
        default=5.0,
    )
    plugin_rules: tuple[str, ...] = plugin_rule_option("any devices near the chosen NUMA nodes")
    record: Path | None = path_option(
        "DIR", "Record decisions in DIR, to replay in tests; they name pods and nodes (docs/scheduling-operation.md)"
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
    session.advice = "See 'alignup schedule --help'."
    from alignup.cli import schedule_start  # noqa: PLC0415 - its libraries are extras, and not needed for --help

    schedule_start.run(options, gate)
