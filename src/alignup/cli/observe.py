"""``alignup observe``: publish what the kubelet of this node holds."""

import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click

from alignup.cli.app import Session, define_command
from alignup.cli.options import (
    NumberRange,
    allowed_host_option,
    choice_option,
    configz_option,
    flag_option,
    option,
    path_option,
    with_options,
)

_KUBELET_DIR = Path("/var/lib/kubelet")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveCommandOptions:
    node: str | None = option("NAME", "Name of the Node object", "$NODE_NAME, or the host name")
    kubeconfig: Path | None = path_option("FILE", "Access to the API server", "kubectl's, or that of this pod")
    context: str = option("NAME", "Context in the kubeconfig", "the current one", default="")
    host_root: Path = path_option("DIR", "Directory with the host's sys and proc", default=Path("/"))
    etc: Path | None = path_option("DIR", "The host's /etc, whose subuid and subgid 'cluster upgrade-check' needs")
    kubelet_dir: Path = path_option("DIR", "Directory of the kubelet, its --root-dir", default=_KUBELET_DIR)
    config: Path | None = path_option(
        "FILE", "KubeletConfiguration, for when the kubelet does not answer", "config.yaml in the kubelet's directory"
    )
    config_dir: Path | None = path_option("DIR", "Directory of drop-in files, the kubelet's --config-dir", "none")
    configz: bool = configz_option()
    kubelet_address: str = option("HOST:PORT", "Address of the kubelet", "the node's, port 10250", default="")
    listen: str | None = option("HOST:PORT", "Serve /metrics, /healthz and /readyz, for example on :9184", "do not")
    allowed_hosts: tuple[str, ...] = allowed_host_option()
    fingerprint: str = choice_option(
        ["exclusive", "all"], "Pods in the fingerprint of NodeResourceTopology: those with exclusive resources, or all"
    )
    steer: bool = flag_option("Offer alignup.dev/numa, and steer pods to NUMA nodes as 'alignup schedule' instructs")
    steer_hold: float = option(
        "SECONDS", "With --steer: how long to wait for a pod", "5", type=NumberRange(min=1, max=60), default=5.0
    )
    period: float = option("SECONDS", "Time between full checks", "60", type=NumberRange(min=1, max=3600), default=60.0)
    once: bool = flag_option("Publish once, and exit")
    dry_run: bool = flag_option("Print the objects as YAML instead, and exit; needs no API server")
    machine: str | None = option(
        "MACHINE", "With --dry-run: another machine, as for 'alignup machine show'", "that of --host-root"
    )


@define_command(
    "observe",
    "alignup observe --dry-run --machine examples/node/machine.yaml --config examples/node/kubelet.yaml "
    "--kubelet-dir examples/node/state --no-configz",
)
@with_options("options", ObserveCommandOptions)
@click.pass_obj
def command(session: Session, *, options: ObserveCommandOptions) -> None:
    """Publish what the kubelet of this node holds, as HostState and NodeResourceTopology objects.

    It reads the machine, the kubelet's configuration, its state files and PodResources, and joins them with the pods
    of the API server. Changes are published at once, at most once a second. It never writes to the kubelet's
    directory, except for the socket of --steer, and drops all Linux capabilities.

    It runs until SIGTERM or Ctrl-C. The exit code is 1 when it cannot start, for example because the kubelet's files
    belong to another machine, and 2 when the input is invalid.
    """
    if not options.dry_run:
        import_structlog()
    session.advice = "See 'alignup observe --help'."
    if options.machine and not options.dry_run:
        raise click.UsageError("--machine needs --dry-run.")
    from alignup.cli import observe_start  # noqa: PLC0415 - its libraries are extras, and not needed for --help

    observe_start.run(options)


def import_structlog() -> None:
    """Import structlog without rich, which it would use for colored tracebacks only: 5 MB on every node."""
    is_imported = "rich" in sys.modules or "structlog" in sys.modules
    with suppress(ModuleNotFoundError):
        if not is_imported:
            sys.modules["rich"] = None  # type: ignore[assignment] # makes an import fail
        import structlog  # noqa: F401, PLC0415
    if not is_imported:
        del sys.modules["rich"]
