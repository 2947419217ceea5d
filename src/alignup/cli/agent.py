"""``alignup agent``: admit pods on this node, durably, until told to stop."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from alignup.cli.app import Session, debug_option, examples
from alignup.cli.client import AgentError, require_agent_extra
from alignup.cli.options import HostOptions, host_options

if TYPE_CHECKING:
    from alignup.agent.daemon import DaemonOptions
    from alignup.agent.pods.wiring import PodRuntimeOptions
    from alignup.agent.recovery import ImportedState
    from alignup.align.workload import Amounts
    from alignup.kube.configuration import Configuration, ContainerSettings

#: What manifests have to be allowed to ask for; ``kube.podspec.types.Permission`` says what each is.
PERMISSIONS = ("host-path", "host-network", "host-pid", "host-ipc", "host-port", "privileged", "sysctl")
LOGS = "logs"  #: in the root unless said otherwise

_ADVICE = "See 'alignup agent --help'."


@click.command(
    short_help="Admit pods on this node, each decision on disk before it is answered.",
    epilog=examples(
        "alignup agent --config examples/node/kubelet.yaml --machine examples/node/machine.yaml --root-dir run/agent",
    ),
)
@host_options
@click.option(
    "--root-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where checkpoint, history and socket are: /var/lib/alignup for root, else ~/.local/state/alignup.",
)
@click.option(
    "--manifest-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Pods whose manifests are in DIR run here as long as they are.",
)
@click.option(
    "--listen",
    metavar="ADDRESS",
    help="unix:PATH, HOST:PORT, or :PORT for this machine alone; a socket in the root directory unless given.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Requests have to bring the token in FILE; needed on the network.",
)
@click.option(
    "--device-plugin-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where device plugins register, as with a kubelet; device-plugins in the root directory unless given.",
)
@click.option(
    "--pod-resources-socket",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Where PodResources is served; pod-resources/kubelet.sock in the root directory unless given.",
)
@click.option(
    "--on-misfit",
    type=click.Choice(["reject", "wait"]),
    default="reject",
    show_default=True,
    help="What becomes of a pod that does not fit now, but would on an empty node.",
)
@click.option(
    "--patience",
    type=click.IntRange(min=0),
    default=16,
    show_default=True,
    metavar="N",
    help="How often a pod that waits is overtaken; after that nobody behind it is admitted before it is.",
)
@click.option(
    "--waiting-room",
    type=click.IntRange(min=0),
    default=1000,
    show_default=True,
    metavar="N",
    help="How many pods may wait.",
)
@click.option(
    "--history",
    type=click.IntRange(min=1),
    default=10_000,
    show_default=True,
    metavar="N",
    help="How many decisions of the past are kept.",
)
@click.option(
    "--runtime",
    type=click.Choice(["none", "cri"]),
    default="none",
    show_default=True,
    help="Who makes decisions true. none: whoever asked for them. cri: this agent, which runs the pods in containers.",
)
@click.option(
    "--runtime-endpoint",
    default="unix:///run/containerd/containerd.sock",
    show_default=True,
    metavar="SOCKET_NAME",
    help="Where the container runtime listens: containerd, CRI-O, or another that speaks CRI v1.",
)
@click.option(
    "--allow",
    type=click.Choice(PERMISSIONS),
    multiple=True,
    help="What manifests may ask for; all of it is refused unless given. Repeatable.",
)
@click.option(
    "--network",
    type=click.Choice(["auto", "cni", "host"]),
    default="auto",
    show_default=True,
    help="Pods have a network of their own (cni) or the host's; auto: cni where the runtime has it.",
)
@click.option(
    "--cgroup-driver",
    type=click.Choice(["auto", "cgroupfs", "systemd"]),
    default="auto",
    show_default=True,
    help="Who makes groups, as the runtime is set up; auto: as it says, or cgroupfs where it does not.",
)
@click.option(
    "--cgroup-root",
    default="alignup",
    show_default=True,
    metavar="NAME",
    help="The group under which pods have theirs; none: the runtime puts containers where it likes.",
)
@click.option(
    "--log-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the logs of containers are; logs in the root directory unless given.",
)
@click.option(
    "--recover",
    type=click.Choice(["previous", "drop-misfits"]),
    multiple=True,
    help="Where the checkpoint is no good, go on from the one before; release pods that cannot stay. Repeatable.",
)
@click.option(
    "--export",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write the kubelet's state files for what is here to DIR, and end.",
)
@debug_option
@click.pass_obj
def command(  # noqa: PLR0913 - one an option
    session: Session,
    *,
    given: HostOptions,
    root_dir: Path | None,
    manifest_dir: Path | None,
    listen: str | None,
    token_file: Path | None,
    device_plugin_dir: Path | None,
    pod_resources_socket: Path | None,
    on_misfit: str,
    patience: int,
    waiting_room: int,
    history: int,
    runtime: str,
    runtime_endpoint: str,
    allow: tuple[str, ...],
    network: str,
    cgroup_driver: str,
    cgroup_root: str,
    log_dir: Path | None,
    recover: tuple[str, ...],
    export: Path | None,
) -> None:
    """Admit pods on this node as the kubelet would, one at a time, each decision on disk before it is answered.

    Pods come over HTTP (alignup admit) or from a manifest directory. After a crash at any moment every admitted pod has
    what it had. With --state, on a root directory that is empty, the agent goes on where a kubelet left off.

    With --runtime cri it runs the pods too, on the CPUs, memory and devices they were given, and keeps them there. When
    it stops they go on; when it starts again it finds them.

    It runs until SIGTERM or Ctrl-C. The exit code is 1 when it cannot begin, as when another agent uses the root
    directory, 2 when something given cannot be used.
    """
    with require_agent_extra():
        from alignup.agent import kubelet_export as exporting  # noqa: PLC0415 - loaded with the command, not with its help
        from alignup.agent.daemon import run  # noqa: PLC0415
        from alignup.agent.recovery import RecoveryMode, RecoveryOptions  # noqa: PLC0415
        from alignup.agent.wait_queue import WaitQueue  # noqa: PLC0415

    session.advice = _ADVICE
    wait = on_misfit == "wait"
    terms = RecoveryOptions(
        line=WaitQueue(patience=patience if wait else None, room=waiting_room),
        wait=wait,
        recover=frozenset(map(RecoveryMode, recover)),
    )
    options, read = _options(given, root_dir=root_dir, listen=listen)
    containers = None
    if runtime == "cri":
        from alignup.kube.configuration import pods_limits  # noqa: PLC0415 - see above

        containers = _containers(
            runtime_endpoint,
            allow=allow,
            network=network,
            cgroup_driver=cgroup_driver,
            cgroup_root=None if cgroup_root == "none" else cgroup_root,
            log_root=(log_dir or options.root / LOGS).absolute(),
            settings=_container_settings(given, read),
            limits=pods_limits(read, options.host.machine),
        )
        options = replace(options, notes=(*options.notes, *_unheeded(given, read)))
    options = replace(
        options,
        token_file=token_file,
        manifests=None if manifest_dir is None else manifest_dir.absolute(),
        recovery=terms,
        history=history,
        plugins=None if device_plugin_dir is None else device_plugin_dir.absolute(),
        pod_resources_socket=None if pod_resources_socket is None else pod_resources_socket.absolute(),
        containers=containers,
    )
    with _beginning():
        if export is None:
            run(options)
        else:
            for line in exporting.export(options, export):
                click.echo(line, err=True)


@contextmanager
def _beginning() -> Iterator[None]:
    """Say why an agent cannot begin, where that is, and what to do."""
    from alignup.align.errors import CheckpointError, EnforceError, ListenError  # noqa: PLC0415 - see above

    try:
        yield
    except CheckpointError as error:
        raise AgentError(error.what, where=error.where, advice=error.advice) from error
    except (EnforceError, ListenError) as error:
        what, *advice = str(error).splitlines()
        raise AgentError(what, advice=" ".join(advice)) from error


def _containers(  # noqa: PLR0913 - one an option
    endpoint: str,
    *,
    allow: tuple[str, ...],
    network: str,
    cgroup_driver: str,
    cgroup_root: str | None,
    log_root: Path,
    settings: "ContainerSettings",
    limits: "Amounts",
) -> "PodRuntimeOptions":
    """How pods are to be run."""
    from alignup.agent.pods.wiring import PodRuntimeOptions  # noqa: PLC0415 - see above
    from alignup.align.errors import EnforceError  # noqa: PLC0415
    from alignup.enforce.cri.client import parse_endpoint  # noqa: PLC0415
    from alignup.kube.podspec.types import Permission  # noqa: PLC0415

    try:
        path = parse_endpoint(endpoint)
    except EnforceError as error:
        raise click.UsageError(f"--runtime-endpoint: {error}") from error
    return PodRuntimeOptions(
        endpoint=path,
        log_root=log_root,
        allowed=frozenset(map(Permission, allow)),
        network=network,
        cgroup_driver=cgroup_driver,
        cgroup_root=cgroup_root,
        settings=settings,
        limits=limits,
    )


def _container_settings(given: HostOptions, read: "Configuration") -> "ContainerSettings":
    """How the configuration has containers run."""
    from alignup.cli import inputs  # noqa: PLC0415 - see above
    from alignup.kube.configuration import container_settings  # noqa: PLC0415

    with inputs.input_errors(f"in {given.config or '--set'}", advice="Correct it there, or with --set."):
        return container_settings(read)


def _unheeded(given: HostOptions, read: "Configuration") -> Iterator[str]:
    """What the configuration says in vain."""
    from alignup.kube.configuration import ignored_fields  # noqa: PLC0415 - see above

    return (f"{given.config or '--set'}: {note}" for note in ignored_fields(read))


def _options(given: HostOptions, *, root_dir: Path | None, listen: str | None) -> "tuple[DaemonOptions, Configuration]":
    """What the agent is to do, as far as it takes reading files to know, and the configuration that says so."""
    import os  # noqa: PLC0415 - see above

    from alignup.agent.address import SOCKET_NAME, UnixAddress, default_root, parse_address  # noqa: PLC0415
    from alignup.agent.daemon import DaemonOptions  # noqa: PLC0415
    from alignup.cli import inputs  # noqa: PLC0415

    root = (root_dir or default_root(os.environ)).absolute()
    with inputs.input_errors("in --listen"):
        address = parse_address(listen) if listen else UnixAddress(root / SOCKET_NAME)
    node = inputs.read_host(replace(given, state=None, pods=()))

    def imported() -> "ImportedState":
        from alignup.agent.kubelet_export import read_grants  # noqa: PLC0415
        from alignup.agent.recovery import ImportedState  # noqa: PLC0415

        restored = inputs.read_host(given).host
        return ImportedState(
            restored.ledger, {} if given.state is None else read_grants(given.state, restored.settings.gates)
        )

    options = DaemonOptions(
        host=node.host,
        root=root,
        address=address,
        imported=None if given.state is None else imported,
        notes=node.notes,
    )
    return options, node.configuration
