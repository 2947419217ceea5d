"""Start the NRI plugin as ``alignup nri`` was told."""

import asyncio
import os
import socket
from collections.abc import Coroutine
from typing import Any

from alignup.align.errors import AlignError
from alignup.align.policy_overrides import PolicyOverrides
from alignup.cli import inputs
from alignup.cli.app import FailureError, Place
from alignup.cli.cluster_client import api_errors
from alignup.cli.nri import ASSIST, DECIDE, STATE_DIR, DecideCommandOptions, NriCommandOptions
from alignup.cli.options import parse_listen_address
from alignup.cli.run import parse_policy_options
from alignup.kubernetes import configuration
from alignup.kubernetes.api import find_access
from alignup.machines import machine_source
from alignup.nri import decide_service
from alignup.nri.decide_service import DecideOptions
from alignup.nri.service import NriOptions, assist
from alignup.observe.linux_calls import drop_capabilities
from alignup.web.log import log_to_stderr


def run(options: NriCommandOptions, decide: DecideCommandOptions) -> None:
    service_options = _nri_options(options)
    work = assist(service_options) if options.mode == ASSIST else _decide(service_options, options, decide)
    drop_capabilities()
    log_to_stderr()
    try:
        asyncio.run(work)
    except AlignError as error:
        raise FailureError(str(error), advice="Run 'alignup doctor' to check the kubelet.") from error


def _nri_options(options: NriCommandOptions) -> NriOptions:
    default = STATE_DIR if options.mode == DECIDE else None
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
    service_options: NriOptions, options: NriCommandOptions, decide: DecideCommandOptions
) -> Coroutine[Any, Any, None]:

    decide_options = _decide_options(options, decide)
    with api_errors():
        access = find_access(decide.kubeconfig, context=decide.context)
    directory = service_options.state_dir or STATE_DIR
    return decide_service.decide(access, service_options, decide_options, directory)


def _decide_options(options: NriCommandOptions, decide: DecideCommandOptions) -> DecideOptions:
    settings = None
    if decide.config is not None:
        kubelet_configuration = inputs.read_configuration(decide.config)
        with inputs.input_errors(Place(detail=f"with {decide.config} on this machine")):
            machine = machine_source.discover(options.host_root)
            settings = configuration.host_settings(kubelet_configuration, machine, limit_nodes=False)
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
