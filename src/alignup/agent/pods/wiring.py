"""Set up a pod runner for one container runtime."""

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from alignup.agent.pods.cpusets import CpusetReconciler
from alignup.agent.pods.cri_config import RUNTIME_DEFAULT, UNCONFINED, HostConfig, parse_resolv_conf
from alignup.agent.pods.files.volumes import HOSTS_PATH
from alignup.agent.pods.pod_state import DEFAULT_INTERVALS, PodIntervals
from alignup.agent.pods.runner import PodRunner
from alignup.agent.pods.runtime import ImageManager, PreStart, RuntimeCache, RuntimeContext
from alignup.agent.pods.worker import EventSink
from alignup.agent.queue import AdmissionQueue
from alignup.agent.state import Clock
from alignup.align.host import Host
from alignup.align.quantity import Quantity
from alignup.align.workload import Amounts
from alignup.align.workload.names import CPU, MEMORY
from alignup.kubernetes.configuration import ContainerSettings
from alignup.kubernetes.podspec.types import Permission
from alignup.run.cri.client import CriTimeouts, RuntimeClient
from alignup.run.cri.pod_cgroups import CGROUP_MOUNT, CgroupDriver, PodCgroups
from alignup.run.cri.resources import NodeLimits

_ID_NAMESPACE = uuid.UUID("4a7c54f7-9f0e-5f3b-8b1d-6d2f0a3f5b11")  # constant, so that agent ids never change
_RESOLV_CONF = Path("/etc/resolv.conf")
_DOCUMENTATION_ADDRESS = ("192.0.2.1", 9)  #: reached through the default route; nothing is sent to it


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRuntimeOptions:
    endpoint: Path  #: socket of the runtime
    log_root: Path
    allowed: frozenset[Permission] = frozenset()
    network: str = "auto"  #: ``cni``, ``host``, or ``auto``: whichever the runtime has
    cgroup_driver: str = "auto"  #: ``cgroupfs``, ``systemd``, or ``auto``: as the runtime reports
    cgroup_root: str | None = "alignup"  #: parent of the pods' cgroups; ``None``: chosen by the runtime
    settings: ContainerSettings = field(default_factory=ContainerSettings)
    limits: Amounts = field(default_factory=dict)  #: node allocatable to enforce; empty: no limit
    timeouts: CriTimeouts = field(default_factory=CriTimeouts)
    intervals: PodIntervals = DEFAULT_INTERVALS
    cgroup_mount: Path = CGROUP_MOUNT
    hosts_file: Path = Path(HOSTS_PATH)


@asynccontextmanager
async def run_pods(  # noqa: PLR0913
    options: PodRuntimeOptions,
    queue: AdmissionQueue,
    *,
    root: Path,
    pre_start: PreStart,
    clock: Clock,
    emit: EventSink,
    log: FilteringBoundLogger,
) -> AsyncIterator[PodRunner]:
    """Run the pods that *queue* admits; ``EnforceError`` if the runtime cannot be used."""
    async with RuntimeClient(options.endpoint, timeouts=options.timeouts) as runtime:
        version = await runtime.version()
        on_host = options.network == "host"
        if options.network == "auto":
            on_host = not any(one.type == "NetworkReady" and one.ready for one in await runtime.conditions())
        driver = options.cgroup_driver
        if driver == "auto":
            driver = await runtime.cgroup_driver() or CgroupDriver.CGROUPFS
        log.info(
            "runtime",
            detail=f"{version.name} {version.version} at {options.endpoint}",
            network="host" if on_host else "cni",
            cgroups=driver,
        )
        cgroups = None
        if options.cgroup_root is not None:
            cgroups = PodCgroups(root=options.cgroup_root, driver=CgroupDriver(driver), mount=options.cgroup_mount)
        host_config = _host_config(options, queue.host, root=root, on_host=on_host)
        cache = RuntimeCache(runtime, host_config.agent)
        context = RuntimeContext(
            runtime=runtime,
            version=version,
            cache=cache,
            cpusets=CpusetReconciler(lambda: queue.settled_host, lambda: cache.pods, runtime, log),
            images=ImageManager(runtime),
            cgroups=cgroups,
            node_limits=_node_limits(options.settings, cgroups or PodCgroups(), queue.host),
            pre_start=pre_start,
            queue=queue,
            host_config=host_config,
            settings=options.settings,
            limits=options.limits,
            root=root,
            log=log,
            intervals=options.intervals,
        )
        runner = PodRunner(context, allowed=options.allowed, clock=clock, emit=emit)
        task = asyncio.create_task(runner.run(), name="runner")
        try:
            yield runner
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def _host_config(options: PodRuntimeOptions, host: Host, *, root: Path, on_host: bool) -> HostConfig:
    resolv_conf = ""
    with suppress(OSError):
        resolv_conf = _RESOLV_CONF.read_text("utf-8", "replace")
    allocatable: Amounts = {}
    if (found := host.rules.allocatable) is not None:
        allocatable = {CPU: Quantity.parse(f"{found.milli_cpu}m"), MEMORY: Quantity.of(found.memory)}
    return HostConfig(
        agent=str(uuid.uuid5(_ID_NAMESPACE, str(root.resolve()))),
        log_root=options.log_root,
        host_network=on_host,
        host_name=socket.gethostname(),
        host_ips=_host_ips(),
        dns=parse_resolv_conf(resolv_conf),
        allocatable=allocatable,
        seccomp=RUNTIME_DEFAULT if options.settings.seccomp_default else UNCONFINED,
        hosts_file=options.hosts_file,
    )


def _node_limits(settings: ContainerSettings, cgroups: PodCgroups, host: Host) -> NodeLimits:
    machine = host.machine
    memory = sum(node.memory or 0 for node in machine.nodes) if machine.memory is None else machine.memory
    return replace(
        cgroups.node_limits(memory=memory),
        quota=settings.cpu_quota,
        period=settings.cpu_period,
        pids_limit=settings.pids_limit,
        oom_kill_group=settings.oom_kill_group,
    )


def _host_ips() -> tuple[str, ...]:
    """The host's address on its default route; empty if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_DOCUMENTATION_ADDRESS)
        except OSError:
            return ()
        return (str(probe.getsockname()[0]),)
