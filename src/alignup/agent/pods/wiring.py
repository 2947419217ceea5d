"""A runner and all it needs, put together for one container runtime."""

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from alignup.agent.pods import cri_config, dns
from alignup.agent.pods.cpusets import CpusetReconciler
from alignup.agent.pods.images import ImageManager
from alignup.agent.pods.runner import PodRunner
from alignup.agent.pods.runtime_cache import RuntimeCache
from alignup.agent.pods.runtime_context import PreStartNotifier, RuntimeContext
from alignup.agent.pods.worker import EventSink
from alignup.agent.queue import AdmissionQueue
from alignup.agent.state import Clock
from alignup.align.host import Host
from alignup.align.quantity import Quantity
from alignup.align.workload import Amounts
from alignup.align.workload.names import CPU, MEMORY
from alignup.enforce.cri.client import CriTimeouts, RuntimeClient
from alignup.enforce.cri.pod_cgroups import CgroupDriver, PodCgroups
from alignup.enforce.cri.resources import NodeLimits
from alignup.enforce.cri.types import RuntimeCondition
from alignup.kube.configuration import ContainerSettings
from alignup.kube.podspec.types import Permission

_IDS = uuid.UUID("4a7c54f7-9f0e-5f3b-8b1d-6d2f0a3f5b11")  # made once; ids made from it stay the same for ever
_RESOLVER = Path("/etc/resolv.conf")
_NOWHERE = ("192.0.2.1", 9)  #: an address for documentation: nothing is sent there, but the way to it is the usual one


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRuntimeOptions:
    """How pods are to be run."""

    endpoint: Path  #: the runtime's socket
    log_root: Path
    allowed: frozenset[Permission] = frozenset()
    network: str = "auto"  #: ``cni``, ``host``, or whichever the runtime has
    cgroup_driver: str = "auto"  #: ``cgroupfs`` or ``systemd``, or as the runtime says
    cgroup_root: str | None = "alignup"  #: under which pods have their groups; ``None``: as the runtime likes
    settings: ContainerSettings = field(default_factory=ContainerSettings)
    limits: Amounts = field(default_factory=dict)  #: what all pods together are held to; empty: whatever there is
    deadlines: CriTimeouts = field(default_factory=CriTimeouts)  #: how long the runtime may take


@asynccontextmanager
async def run_pods(  # noqa: PLR0913 - everybody who is spoken to
    containers: PodRuntimeOptions,
    desk: AdmissionQueue,
    *,
    root: Path,
    errands: PreStartNotifier,
    clock: Clock,
    tell: EventSink,
    log: FilteringBoundLogger,
) -> AsyncIterator[PodRunner]:
    """Run the pods of *desk* as long as this lasts; ``EnforceError`` where the runtime cannot be used."""
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(RuntimeClient(containers.endpoint, deadlines=containers.deadlines))
        identity = await runtime.identity()
        on_host = _on_host(containers.network, await runtime.conditions())
        driver = containers.cgroup_driver
        if driver == "auto":
            driver = await runtime.cgroup_driver() or CgroupDriver.CGROUPFS
        log.info(
            "runtime",
            detail=f"{identity.name} {identity.version} at {containers.endpoint}",
            network="host" if on_host else "cni",
            cgroups=driver,
        )
        groups = None
        if containers.cgroup_root is not None:
            groups = PodCgroups(root=containers.cgroup_root, driver=CgroupDriver(driver))
        agent = _name(root)
        scene = RuntimeCache(runtime, agent)
        tools = RuntimeContext(
            runtime=runtime,
            identity=identity,
            cache=scene,
            cpusets=CpusetReconciler(lambda: desk.settled, scene.pods, runtime, log),
            images=ImageManager(runtime),
            groups=groups,
            ground=_ground(containers.settings, groups or PodCgroups(), desk.host),
            errands=errands,
            desk=desk,
            place=_place(containers, desk.host, agent=agent, on_host=on_host),
            settings=containers.settings,
            limits=containers.limits,
            root=root,
            log=log,
        )
        runner = PodRunner(tools, allowed=containers.allowed, clock=clock, tell=tell)
        task = asyncio.create_task(runner.run(), name="runner")
        try:
            yield runner
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def _name(root: Path) -> str:
    """What the agent of a root directory is known by, whichever way that is called."""
    return str(uuid.uuid5(_IDS, str(root.resolve())))


def _on_host(network: str, conditions: tuple[RuntimeCondition, ...]) -> bool:
    """Whether pods share the host's network."""
    if network != "auto":
        return network == "host"
    return not any(one.type == "NetworkReady" and one.ready for one in conditions)


def _place(containers: PodRuntimeOptions, host: Host, *, agent: str, on_host: bool) -> cri_config.HostConfig:
    return cri_config.HostConfig(
        agent=agent,
        log_root=containers.log_root,
        host_network=on_host,
        host=socket.gethostname(),
        host_ips=_addresses(),
        dns=dns.parse_resolv_conf(_resolver()),
        allocatable=_allocatable(host),
        seccomp=cri_config.RUNTIME_DEFAULT if containers.settings.seccomp_default else cri_config.UNCONFINED,
    )


def _ground(settings: ContainerSettings, groups: PodCgroups, host: Host) -> NodeLimits:
    """What limits depend on here, and how they are held."""
    return replace(
        groups.ground(memory=_memory(host)),
        quota=settings.cpu_quota,
        period=settings.cpu_period,
        processes=settings.pids_limit,
        killed_together=settings.oom_kill_group,
    )


def _memory(host: Host) -> int:
    """The bytes of the machine."""
    known = host.machine.memory
    return sum(node.memory or 0 for node in host.machine.nodes) if known is None else known


def _allocatable(host: Host) -> Amounts:
    """What pods may use together, as containers without a limit are told."""
    found = host.rules.allocatable
    if found is None:
        return {}
    return {CPU: Quantity.parse(f"{found.milli_cpu}m"), MEMORY: Quantity.of(found.memory)}


def _resolver() -> str:
    """How this host looks up names; nothing when it has no file that says so."""
    try:
        return _RESOLVER.read_text("utf-8", "replace")
    except OSError:
        return ""


def _addresses() -> tuple[str, ...]:
    """The host's own address on the way to everybody else; empty when it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_NOWHERE)
        except OSError:
            return ()
        return (str(probe.getsockname()[0]),)
