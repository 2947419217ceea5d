"""``alignup observe``: publish what the kubelet of this node holds."""

import asyncio
import os
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from alignup.cli import terminal
from alignup.cli.app import InputError, Place, Session, define_command
from alignup.cli.cluster_access import api_errors
from alignup.cli.exit_codes import FAILED
from alignup.cli.options import (
    NumberRange,
    allowed_host_option,
    check_exists,
    choice_option,
    configz_option,
    flag_option,
    option,
    parse_listen_address,
    path_option,
    with_options,
)

if TYPE_CHECKING:
    from alignup.observe.service import ObserveOptions

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
    are those of another machine, and 2 when the input is invalid.
    """
    if not options.dry_run:
        import_structlog()
    from alignup.kubernetes.api import find_access  # noqa: PLC0415
    from alignup.observe import service as observe  # noqa: PLC0415 - not needed for --help
    from alignup.observe.linux_calls import drop_capabilities  # noqa: PLC0415
    from alignup.web.log import log_to_stderr  # noqa: PLC0415

    session.advice = "See 'alignup observe --help'."
    if options.machine and not options.dry_run:
        raise click.UsageError("--machine needs --dry-run.")
    service_options = _observe_options(options)
    if options.dry_run:
        asyncio.run(_print_objects(service_options, options.machine))
        return
    log_to_stderr()
    with api_errors():
        access = find_access(options.kubeconfig, context=options.context)
    drop_capabilities()
    problems = asyncio.run(observe.observe(access, service_options))
    for problem in problems:
        click.echo(f"alignup: {problem}", err=True)
    if problems:
        raise click.exceptions.Exit(FAILED)


def import_structlog() -> None:
    """Import structlog without rich, which it would use for colored tracebacks only: 5 MB on every node."""
    is_imported = "rich" in sys.modules or "structlog" in sys.modules
    with suppress(ModuleNotFoundError):
        if not is_imported:
            sys.modules["rich"] = None  # type: ignore[assignment] # makes an import fail
        import structlog  # noqa: F401, PLC0415
    if not is_imported:
        del sys.modules["rich"]


def _observe_options(options: ObserveCommandOptions) -> "ObserveOptions":
    from alignup.observe.kubelet_reader import KubeletPaths  # noqa: PLC0415 - as above
    from alignup.observe.marker_steering import steering_timing  # noqa: PLC0415
    from alignup.observe.observer import ObserverTiming  # noqa: PLC0415
    from alignup.observe.published_objects import FingerprintMethod  # noqa: PLC0415
    from alignup.observe.service import ObserveOptions  # noqa: PLC0415

    if not options.kubelet_dir.is_dir():
        raise InputError(
            f"{options.kubelet_dir}: no such directory",
            place=Place("--kubelet-dir"),
            advice="Give the kubelet's --root-dir, as it is mounted here.",
        )
    check_exists(options, "host_root", "etc")
    if options.dry_run or not options.configz:  # else it is for when the kubelet does not answer
        check_exists(options, "config", "config_dir")
    return ObserveOptions(
        host=options.node or os.environ.get("NODE_NAME") or socket.gethostname().lower(),
        paths=KubeletPaths(
            host_root=options.host_root,
            directory=options.kubelet_dir.absolute(),
            config_file=None if options.config is None else options.config.absolute(),
            config_dir=None if options.config_dir is None else options.config_dir.absolute(),
            etc=options.etc,
        ),
        configz=options.configz,
        kubelet_address=options.kubelet_address,
        listen=None if options.listen is None else parse_listen_address(options.listen, "--listen").pair,
        names=options.allowed_hosts,
        method=FingerprintMethod.EXCLUSIVE if options.fingerprint == "exclusive" else FingerprintMethod.ALL,
        once=options.once,
        steer=steering_timing(options.steer_hold) if options.steer else None,
        timing=ObserverTiming(period=options.period),
    )


async def _print_objects(options: "ObserveOptions", machine: str | None) -> None:
    """Print the objects of the host, from its files and PodResources only."""
    from alignup.cli import inputs  # noqa: PLC0415 - as above
    from alignup.documents.host_state.writer import to_object  # noqa: PLC0415
    from alignup.kubernetes.api import NODE_RESOURCE_TOPOLOGIES  # noqa: PLC0415
    from alignup.kubernetes.api.host_states import HOST_STATES  # noqa: PLC0415
    from alignup.kubernetes.manifests.documents import to_yaml  # noqa: PLC0415
    from alignup.kubernetes.plugins.pod_resources import pod_resources_client  # noqa: PLC0415
    from alignup.machines import machine_source  # noqa: PLC0415
    from alignup.observe.kubelet_reader import KubeletReader  # noqa: PLC0415
    from alignup.observe.observation import join  # noqa: PLC0415
    from alignup.observe.published_objects import host_state, node_topology  # noqa: PLC0415

    description = None if machine is None else inputs.read_machine(machine)
    advice = "Run 'alignup doctor' to see what the kubelet reports."
    async with pod_resources_client(options.paths.pod_resources) as client:
        discover = machine_source.discover if description is None else lambda _root: description
        reader = KubeletReader(options.paths, pod_resources=client, discover=discover)
        with inputs.input_errors(Place(file=str(options.paths.directory)), advice=advice):
            observation = join(await reader.read())
    terminal.print_notes((*observation.contradictions, *observation.gaps))
    for resource, document in (
        (HOST_STATES, to_object(host_state(observation))),
        (NODE_RESOURCE_TOPOLOGIES, node_topology(observation, method=options.method)),
    ):
        head = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": options.host}}
        terminal.print_document(f"---\n{to_yaml({**head, **document})}")
