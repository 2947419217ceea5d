"""Start the node agent as ``alignup agent`` was told, or export its state."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from alignup.agent import daemon, kubelet_export, recovery, state
from alignup.agent.kubelet_export import read_grants
from alignup.agent.recovery import ImportedState
from alignup.align.errors import SocketPathError, TlsRequiredError
from alignup.align.host import Host
from alignup.cli import inputs
from alignup.cli.agent import AgentCommandOptions
from alignup.cli.app import FailureError, Place
from alignup.cli.options import HostOptions, check_exists
from alignup.web import address
from alignup.web.address import Address, TcpAddress

_SHORTER_PATHS = "Give a shorter --root-dir, or shorter --listen, --device-plugin-dir and --pod-resources-socket."


def run(host: HostOptions, options: AgentCommandOptions) -> None:
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

    for line in kubelet_export.export(daemon_options, options.export):
        click.echo(line, err=True)


def _daemon_options(host: HostOptions, options: AgentCommandOptions) -> daemon.DaemonOptions:
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
        host=Host(node.host.machine, replace(node.host.settings, near_devices=True), others=node.host.others),
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


def _import_state(host: HostOptions, directory: Path) -> ImportedState:
    restored_host = inputs.read_host(host).host
    return ImportedState(restored_host.ledger, read_grants(directory, restored_host.settings.gates))


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()
