"""``alignup nri``: CPUs and memory of containers beside a kubelet."""

from dataclasses import dataclass, fields
from pathlib import Path

import click
from click.core import ParameterSource

from alignup.cli.app import InputError, Place, Session, define_command
from alignup.cli.observe import import_structlog
from alignup.cli.options import (
    NumberRange,
    allowed_host_option,
    check_exists,
    choice_option,
    configz_option,
    flag_option,
    option,
    path_option,
    policy_options_option,
    topology_policy_option,
    topology_scope_option,
    with_options,
)
from alignup.socket_paths import length_problem

_KUBELET_DIR = Path("/var/lib/kubelet")
_SOCKET = Path("/var/run/nri/nri.sock")
STATE_DIR = Path("/var/lib/alignup-nri")
DECIDE, ASSIST = "decide", "assist"
_MEMORY_POLICIES = ("default", "bind", "preferred-many", "interleave", "weighted-interleave")


@dataclass(frozen=True, slots=True, kw_only=True)
class NriCommandOptions:
    mode: str = choice_option(
        [ASSIST, DECIDE],
        "Who decides: with assist, the kubelet's static managers stay in charge; with decide, they are off",
    )
    socket: Path = path_option("FILE", "NRI socket of the container runtime", default=_SOCKET)
    index: str = option("NN", "Two digits; plugins with lower ones are asked earlier", "90", default="90")
    kubelet_dir: Path = path_option("DIR", "Directory of the kubelet, its --root-dir", default=_KUBELET_DIR)
    host_root: Path = path_option("DIR", "Directory with the host's sys and proc", default=Path("/"))
    state_dir: Path | None = path_option(
        "DIR", "Directory for decisions, and for what 'alignup audit' reads", f"{STATE_DIR} in decide mode, else none"
    )
    listen: str | None = option("HOST:PORT", "Serve /metrics, /healthz and /readyz, for example on :9187", "do not")
    allowed_hosts: tuple[str, ...] = allowed_host_option()
    period: float = option(
        "SECONDS",
        "Time between checks of the kubelet's state files",
        "1",
        type=NumberRange(min=0.1, max=60),
        default=1.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideCommandOptions:
    policy: str | None = topology_policy_option()
    scope: str | None = topology_scope_option()
    policy_options: tuple[str, ...] = policy_options_option()
    config: Path | None = path_option(
        "FILE",
        "Decide by this KubeletConfiguration; the kubelet has another",
        "static managers with the kubelet's reservations",
    )
    pod_policies: bool = flag_option("Let pods choose policy and scope by annotation")
    memory_policy: str = choice_option(_MEMORY_POLICIES, "Memory policy of the kernel on the decided NUMA nodes")
    node: str | None = option("NAME", "Name of the Node object", "$NODE_NAME, or the host name")
    kubeconfig: Path | None = path_option("FILE", "Access to the API server", "kubectl's, or that of this pod")
    context: str = option("NAME", "Context in the kubeconfig", "the current one", default="")
    configz: bool = configz_option()
    kubelet_address: str = option("HOST:PORT", "Address of the kubelet", "the node's, port 10250", default="")


@define_command(
    "nri", "alignup nri --mode assist --listen :9187", "alignup nri --mode decide --policy single-numa-node"
)
@with_options("options", NriCommandOptions)
@with_options("decide", DecideCommandOptions)
@click.pass_obj
def command(session: Session, *, options: NriCommandOptions, decide: DecideCommandOptions) -> None:
    """Place containers on NUMA nodes beside a kubelet, as an NRI plugin of containerd or CRI-O.

    In assist mode the kubelet's static CPU manager stays in charge. Containers with exclusive CPUs are left alone. All
    others get the part of the kubelet's shared CPUs on as few NUMA nodes as their requests allow, instead of all of
    it, and memory on the same nodes where their memory limits fit. Never a CPU that the kubelet gave away.

    In decide mode the kubelet's CPU and memory managers are off (policies none and None), and Alignup decides on each
    pod when its sandbox runs, beside the devices that it has already. A pod that cannot be aligned does not start; its
    event says why. The options from --policy on are for this mode.

    It runs until SIGTERM or Ctrl-C, and connects again when the runtime restarts; meanwhile, containers keep what they
    have. The exit code is 1 when it cannot start, for example because the kubelet's state files are unreadable or its
    managers are on, and 2 when the input is invalid.
    """
    import_structlog()
    from alignup.cli import nri_start  # noqa: PLC0415 - its libraries are extras, and not needed for --help

    session.advice = "See 'alignup nri --help'."
    if len(options.index) != 2 or not (options.index.isascii() and options.index.isdigit()):
        raise InputError(f"{options.index!r} is not an index: expected two digits", place=Place("--index"))
    if problem := length_problem(options.socket):
        raise InputError(problem, place=Place("--socket"))
    check_exists(options, "kubelet_dir", "host_root")
    context = click.get_current_context()
    for declared_field in fields(decide) if options.mode == ASSIST else ():
        if context.get_parameter_source(declared_field.name) is not ParameterSource.DEFAULT:
            name = {"policy_options": "option"}.get(declared_field.name, declared_field.name).replace("_", "-")
            raise InputError("is for decide mode", place=Place(f"--{name}"), advice="Add --mode decide.")
    nri_start.run(options, decide)
