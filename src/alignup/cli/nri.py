"""``alignup nri``: CPUs and memory of containers beside a kubelet."""

import asyncio
import os
import socket
from collections.abc import Coroutine
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from alignup.align.errors import AlignError
from alignup.cli.app import FailureError, InputError, Place, Session, define_command
from alignup.cli.cluster_access import api_errors
from alignup.cli.observe import import_structlog
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
    policy_options_option,
    topology_policy_option,
    topology_scope_option,
    with_options,
)
from alignup.socket_paths import length_problem

if TYPE_CHECKING:
    from alignup.nri.decide_service import DecideOptions
    from alignup.nri.service import NriOptions

_KUBELET_DIR = Path("/var/lib/kubelet")
_SOCKET = Path("/var/run/nri/nri.sock")
_STATE_DIR = Path("/var/lib/alignup-nri")
_DECIDE, _ASSIST = "decide", "assist"
_MEMORY_POLICIES = ("default", "bind", "preferred-many", "interleave", "weighted-interleave")


@dataclass(frozen=True, slots=True, kw_only=True)
class NriCommandOptions:
    mode: str = choice_option(
        [_ASSIST, _DECIDE],
        "Who decides: with assist, the kubelet's static managers stay in charge; with decide, they are off",
    )
    socket: Path = path_option("FILE", "NRI socket of the container runtime", default=_SOCKET)
    index: str = option("NN", "Two digits; plugins with lower ones are asked earlier", "90", default="90")
    kubelet_dir: Path = path_option("DIR", "Directory of the kubelet, its --root-dir", default=_KUBELET_DIR)
    host_root: Path = path_option("DIR", "Directory with the host's sys and proc", default=Path("/"))
    state_dir: Path | None = path_option(
        "DIR", "Directory for decisions, and for what 'alignup audit' reads", f"{_STATE_DIR} in decide mode, else none"
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
    from alignup.nri.service import assist  # noqa: PLC0415 - not needed for --help
    from alignup.observe.linux_calls import drop_capabilities  # noqa: PLC0415
    from alignup.web.log import log_to_stderr  # noqa: PLC0415

    session.advice = "See 'alignup nri --help'."
    if len(options.index) != 2 or not (options.index.isascii() and options.index.isdigit()):
        raise InputError(f"{options.index!r} is not an index: expected two digits", place=Place("--index"))
    if problem := length_problem(options.socket):
        raise InputError(problem, place=Place("--socket"))
    check_exists(options, "kubelet_dir", "host_root")
    context = click.get_current_context()
    for declared in fields(decide) if options.mode == _ASSIST else ():
        if context.get_parameter_source(declared.name) is not ParameterSource.DEFAULT:
            name = {"policy_options": "option"}.get(declared.name, declared.name).replace("_", "-")
            raise InputError("is for decide mode", place=Place(f"--{name}"), advice="Add --mode decide.")
    service_options = _nri_options(options)
    work = assist(service_options) if options.mode == _ASSIST else _decide(service_options, options, decide)
    drop_capabilities()
    log_to_stderr()
    try:
        asyncio.run(work)
    except AlignError as error:
        raise FailureError(str(error), advice="Run 'alignup doctor' to check the kubelet.") from error


def _nri_options(options: NriCommandOptions) -> "NriOptions":
    from alignup.nri.service import NriOptions  # noqa: PLC0415 - as above

    default = _STATE_DIR if options.mode == _DECIDE else None
    return NriOptions(
        path=options.socket,
        index=options.index,
        kubelet_dir=options.kubelet_dir.absolute(),
        host_root=options.host_root,
        state_dir=options.state_dir.absolute() if options.state_dir else default,
        listen=None if options.listen is None else parse_listen_address(options.listen, "--listen").pair,
        names=options.allowed_hosts,
        period=options.period,
    )


def _decide(
    service_options: "NriOptions", options: NriCommandOptions, decide: DecideCommandOptions
) -> Coroutine[Any, Any, None]:
    from alignup.kubernetes.api import find_access  # noqa: PLC0415 - as above
    from alignup.nri import decide_service  # noqa: PLC0415

    decide_options = _decide_options(options, decide)
    with api_errors():
        access = find_access(decide.kubeconfig, context=decide.context)
    directory = service_options.state_dir or _STATE_DIR
    return decide_service.decide(access, service_options, decide_options, directory)


def _decide_options(options: NriCommandOptions, decide: DecideCommandOptions) -> "DecideOptions":
    from alignup.align.policy_overrides import PolicyOverrides  # noqa: PLC0415 - as above
    from alignup.cli import inputs  # noqa: PLC0415
    from alignup.cli.run import parse_policy_options  # noqa: PLC0415
    from alignup.kubernetes import configuration  # noqa: PLC0415
    from alignup.machines import machine_source  # noqa: PLC0415
    from alignup.nri.decide_service import DecideOptions  # noqa: PLC0415

    settings = None
    if decide.config is not None:
        read = inputs.read_configuration(decide.config)
        with inputs.input_errors(Place(detail=f"with {decide.config} on this machine")):
            machine = machine_source.discover(options.host_root)
            settings = configuration.host_settings(read, machine, limit_nodes=False)
    policies = PolicyOverrides(decide.policy, decide.scope, parse_policy_options(decide.policy_options), settings)
    memory_policy = decide.memory_policy.upper().replace("-", "_")
    return DecideOptions(
        host=decide.node or os.environ.get("NODE_NAME") or socket.gethostname().lower(),
        policies=policies,
        configz=decide.configz,
        kubelet_address=decide.kubelet_address,
        pod_policy_annotations=decide.pod_policies,
        memory_policy=None if memory_policy == "DEFAULT" else f"MPOL_{memory_policy}",
    )
