"""Start the observer as ``alignup observe`` was told, or print what it would publish."""

import asyncio
import os
import socket

import click

from alignup.cli import inputs, terminal
from alignup.cli.app import InputError, Place
from alignup.cli.cluster_client import api_errors
from alignup.cli.exit_codes import FAILED
from alignup.cli.observe import ObserveCommandOptions
from alignup.cli.options import check_exists, parse_listen_address
from alignup.documents.host_state.writer import to_object
from alignup.kubernetes.api import NODE_RESOURCE_TOPOLOGIES, find_access
from alignup.kubernetes.api.host_states import HOST_STATES
from alignup.kubernetes.manifests.documents import to_yaml
from alignup.kubernetes.plugins.pod_resources import pod_resources_client
from alignup.machines import machine_source
from alignup.observe import service as observe
from alignup.observe.kubelet_reader import KubeletPaths, KubeletReader
from alignup.observe.linux_calls import drop_capabilities
from alignup.observe.marker_steering import steering_timing
from alignup.observe.observation import join
from alignup.observe.observer import ObserverTiming
from alignup.observe.published_objects import FingerprintMethod, host_state, node_topology
from alignup.observe.service import ObserveOptions
from alignup.web.log import log_to_stderr


def run(options: ObserveCommandOptions) -> None:
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


def _observe_options(options: ObserveCommandOptions) -> ObserveOptions:
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


async def _print_objects(options: ObserveOptions, machine: str | None) -> None:
    """Print the objects of the host, from its files and PodResources only."""
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
