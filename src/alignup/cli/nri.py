"""``alignup nri``: CPUs and memory of containers beside a kubelet."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import click

from alignup.align.errors import AlignError
from alignup.cli.app import FailureError, InputError, Place, Session, define_command
from alignup.cli.observe import import_structlog
from alignup.cli.options import (
    NumberRange,
    allowed_host_option,
    check_exists,
    choice_option,
    option,
    parse_listen_address,
    path_option,
    with_options,
)

_KUBELET_DIR = Path("/var/lib/kubelet")
_SOCKET = Path("/var/run/nri/nri.sock")


@dataclass(frozen=True, slots=True, kw_only=True)
class NriCommandOptions:
    mode: str = choice_option(["assist"], "Who decides: with assist, the kubelet's static managers stay in charge")
    socket: Path = path_option("FILE", "NRI socket of the container runtime", default=_SOCKET)
    index: str = option("NN", "Two digits; plugins with lower ones are asked earlier", "90", default="90")
    kubelet_dir: Path = path_option("DIR", "Directory of the kubelet, its --root-dir", default=_KUBELET_DIR)
    host_root: Path = path_option("DIR", "Directory with the host's sys and proc", default=Path("/"))
    listen: str | None = option("HOST:PORT", "Serve /metrics, /healthz and /readyz, for example on :9187", "do not")
    allowed_hosts: tuple[str, ...] = allowed_host_option()
    period: float = option(
        "SECONDS",
        "Time between checks of the kubelet's state files",
        "1",
        type=NumberRange(min=0.1, max=60),
        default=1.0,
    )


@define_command("nri", "alignup nri --mode assist --listen :9187")
@with_options("options", NriCommandOptions)
@click.pass_obj
def command(session: Session, *, options: NriCommandOptions) -> None:
    """Place containers on NUMA nodes beside a kubelet, as an NRI plugin of containerd or CRI-O.

    In assist mode the kubelet's static CPU manager stays in charge. Containers with exclusive CPUs are left alone. All
    others get the part of the kubelet's shared CPUs on as few NUMA nodes as their requests allow, instead of all of
    it, and memory on the same nodes where their memory limits fit. Never a CPU that the kubelet gave away.

    It runs until SIGTERM or Ctrl-C, and connects again when the runtime restarts; meanwhile, containers keep what they
    have. The exit code is 1 when it cannot start, for example because the kubelet's state files are unreadable, and 2
    when the input is invalid.
    """
    import_structlog()
    from alignup.nri import service as nri  # noqa: PLC0415 - not needed for --help
    from alignup.observe.linux_calls import drop_capabilities  # noqa: PLC0415
    from alignup.web.log import log_to_stderr  # noqa: PLC0415

    session.advice = "See 'alignup nri --help'."
    if len(options.index) != 2 or not (options.index.isascii() and options.index.isdigit()):
        raise InputError(f"{options.index!r} is not an index: expected two digits", place=Place("--index"))
    check_exists(options, "kubelet_dir", "host_root")
    drop_capabilities()
    log_to_stderr()
    try:
        asyncio.run(
            nri.assist(
                nri.NriOptions(
                    path=options.socket,
                    index=options.index,
                    kubelet_dir=options.kubelet_dir.absolute(),
                    host_root=options.host_root,
                    listen=None if options.listen is None else parse_listen_address(options.listen, "--listen").pair,
                    names=options.allowed_hosts,
                    period=options.period,
                )
            )
        )
    except AlignError as error:
        raise FailureError(str(error), advice="Run 'alignup doctor' to check the kubelet's state files.") from error
