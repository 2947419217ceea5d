"""``alignup agent``: run the node agent."""

from dataclasses import dataclass
from pathlib import Path

import click

from alignup.cli.app import Session, define_command
from alignup.cli.options import (
    HostOptions,
    allowed_host_option,
    choice_option,
    count_option,
    flag_option,
    option,
    path_option,
    with_options,
)

_IN_ROOT = "in the root directory"
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
    resources. With --kubelet-dir and an empty root directory, the agent continues from a kubelet's state.

    It runs until SIGTERM or Ctrl-C. The exit code is 1 when it cannot start, for example because another agent uses
    the root directory, and 2 when the input is invalid.
    """
    session.advice = "See 'alignup agent --help'."
    from alignup.cli import agent_start  # noqa: PLC0415 - its libraries are extras, and not needed for --help

    agent_start.run(host, options)
