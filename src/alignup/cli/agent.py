"""``alignup agent``: run the node agent."""

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from alignup.align.errors import SocketPathError, TlsRequiredError
from alignup.cli import inputs
from alignup.cli.app import FailureError, Place, Session, define_command
from alignup.cli.options import (
    HostOptions,
    allowed_host_option,
    check_exists,
    choice_option,
    count_option,
    flag_option,
    option,
    path_option,
    with_options,
)
from alignup.web import address
from alignup.web.address import Address, TcpAddress

if TYPE_CHECKING:
    from alignup.agent.daemon import DaemonOptions
    from alignup.agent.recovery import ImportedState

_IN_ROOT = "in the root directory"
_SHORTER_PATHS = "Give a shorter --root-dir, or shorter --listen, --device-plugin-dir and --pod-resources-socket."
_ROOTS = "/var/lib/alignup for root, ~/.local/state/alignup for other users"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCommandOptions:
    root_dir: Path | None = path_option("DIR", "Directory of the database and the socket", _ROOTS)
    manifest_dir: Path | None = path_option("DIR", "Admit the pods whose manifests are in DIR")
    listen: str | None = option("ADDRESS", "unix:PATH, HOST:PORT, or :PORT on all addresses", f"agent.sock {_IN_ROOT}")
    web_listen: str | None = option(
        "ADDRESS", "Serve the web pages to browsers at HOST:PORT, for example 127.0.0.1:8889; see alignup web"
    )
    token_file: Path | None = path_option("FILE", "Require the token in FILE from clients; mandatory on the network")
    tls_cert_file: Path | None = path_option(
        "FILE", "Serve HTTPS with the certificates in FILE (PEM); read again when it changes"
    )
    tls_private_key_file: Path | None = path_option("FILE", "Private key of the certificate (PEM)")
    allowed_hosts: tuple[str, ...] = allowed_host_option()
    insecure_http: bool = flag_option("Serve HTTP without TLS on non-loopback addresses")
    device_plugin_dir: Path | None = path_option(
        "DIR", "Where device plugins register, as with a kubelet", f"device-plugins {_IN_ROOT}"
    )
    pod_resources_socket: Path | None = path_option(
        "PATH", "Socket of the PodResources API", f"pod-resources/kubelet.sock {_IN_ROOT}"
    )
    on_misfit: str = choice_option(["reject", "wait"], "Handling of a pod that fits only on an empty node")
    patience: int = count_option(16, "How many later pods may overtake a waiting pod")
    waiting_room: int = count_option(1000, "How many pods may wait")
    history: int = count_option(10_000, "How many past decisions to keep", minimum=1)
    recover: tuple[str, ...] = option(
        "",
        "set-aside: rename an unusable database and start empty. accept-loss: go on without changes that the database "
        "has lost. drop-misfits: release pods that no longer fit",
        type=click.Choice(["set-aside", "accept-loss", "drop-misfits"]),
        multiple=True,
    )
    export: Path | None = path_option("DIR", "Write the kubelet's state files for the current pods to DIR, and exit")


@define_command(
    "agent",
    "alignup agent --config examples/node/kubelet.yaml --machine examples/node/machine.yaml --root-dir run/agent",
)
@with_options("host", HostOptions)
@with_options("options", AgentCommandOptions)
@click.pass_obj
def command(session: Session, *, host: HostOptions, options: AgentCommandOptions) -> None:
    """Run the node agent: admit pods as the kubelet would, one at a time, and save each decision before answering.

    Pods arrive over HTTP (alignup admit) or from a manifest directory. After a crash, every admitted pod keeps its
    resources. With --state and an empty root directory, the agent continues from a kubelet's state.

    It runs until SIGTERM or Ctrl-C. The exit code is 1 when it cannot start, for example because another agent uses
    the root directory, and 2 when the input is invalid.
    """
    from alignup.agent import daemon  # noqa: PLC0415 - not needed for --help

    session.advice = "See 'alignup agent --help'."
    daemon_options = _daemon_options(host, options)
    if options.export is None:
        try:
            daemon.run(daemon_options)
        except SocketPathError as error:
            raise FailureError(str(error), advice=_SHORTER_PATHS) from error
        except TlsRequiredError as error:
            advice = "Give --tls-cert-file and --tls-private-key-file, or allow plain HTTP with --insecure-http."
            raise FailureError(str(error), advice=advice) from error
        return
    from alignup.agent import kubelet_export  # noqa: PLC0415 - only with --export

    for line in kubelet_export.export(daemon_options, options.export):
        click.echo(line, err=True)


def _daemon_options(host: HostOptions, options: AgentCommandOptions) -> "DaemonOptions":
    from alignup.agent import daemon, recovery, state  # noqa: PLC0415 - as above

    root = (options.root_dir or address.default_root(os.environ)).absolute()
    with inputs.input_errors(Place("--listen")):
        default = address.UnixAddress(root / address.SOCKET_NAME)
        listen = address.parse_address(options.listen, listening=True) if options.listen else default
    _check_listen(options, listen)
    check_exists(options, "token_file", "tls_cert_file", "tls_private_key_file")
    web = _web_address(options)
    node = inputs.read_host(replace(host, state=None, pods=()))
    wait = options.on_misfit == "wait"
    return daemon.DaemonOptions(
        host=node.host,
        root=root,
        address=listen,
        web_address=web,
        token_file=options.token_file,
        certificate=_absolute(options.tls_cert_file),
        private_key=_absolute(options.tls_private_key_file),
        names=options.allowed_hosts,
        insecure_http=options.insecure_http,
        manifests=_absolute(options.manifest_dir),
        recovery=recovery.RecoveryOptions(
            waiting=state.WaitingPods(max_overtakes=options.patience if wait else None, capacity=options.waiting_room),
            wait_enabled=wait,
            modes=frozenset(map(recovery.RecoveryMode, options.recover)),
            hints={
                recovery.RecoveryMode.SET_ASIDE: "start with --recover set-aside to rename it and start empty",
                recovery.RecoveryMode.ACCEPT_LOSS: "start with --recover accept-loss to do so",
                recovery.RecoveryMode.DROP_MISFITS: "start with --recover drop-misfits to release only these pods",
            },
        ),
        history=options.history,
        plugins=_absolute(options.device_plugin_dir),
        pod_resources_socket=_absolute(options.pod_resources_socket),
        imported=None if host.state is None else partial(_import_state, host, host.state),
        notes=node.notes,
    )


def _check_listen(options: AgentCommandOptions, listen: Address) -> None:
    """Raise a ``UsageError`` if the options contradict each other."""
    with_tls = options.tls_cert_file is not None
    if with_tls != (options.tls_private_key_file is not None):
        raise click.UsageError("--tls-cert-file and --tls-private-key-file need each other.")
    if with_tls and options.insecure_http:
        raise click.UsageError("--insecure-http contradicts --tls-cert-file.")
    tls = isinstance(listen, TcpAddress) and listen.tls is not False  # or left open
    if with_tls and not tls and options.web_listen is None:
        raise click.UsageError(f"--tls-cert-file is for TCP addresses with HTTPS, not for {listen}.")
    if isinstance(listen, TcpAddress) and listen.tls and not with_tls:
        raise click.UsageError(f"--listen {listen} needs --tls-cert-file and --tls-private-key-file.")
    if isinstance(listen, TcpAddress) and options.token_file is None:
        raise click.UsageError(f"Listening on {listen} requires a token: name its file with --token-file.")


def _web_address(options: AgentCommandOptions) -> TcpAddress | None:
    if options.web_listen is None:
        return None
    with inputs.input_errors(Place("--web-listen")):
        web = address.parse_address(options.web_listen, listening=True)
    if not isinstance(web, TcpAddress):
        raise click.UsageError("--web-listen is for browsers, which need HOST:PORT.")
    with_tls = options.tls_cert_file is not None
    if web.tls is not None and web.tls != with_tls:
        problem = "needs --tls-cert-file" if web.tls else "contradicts --tls-cert-file"
        raise click.UsageError(f"--web-listen {web} {problem}.")
    return web


def _import_state(host: HostOptions, directory: Path) -> "ImportedState":
    from alignup.agent.kubelet_export import read_grants  # noqa: PLC0415 - only with --state
    from alignup.agent.recovery import ImportedState  # noqa: PLC0415

    restored = inputs.read_host(host).host
    return ImportedState(restored.ledger, read_grants(directory, restored.settings.gates))


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()
