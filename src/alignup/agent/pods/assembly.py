"""A runner and all it needs, put together for one container runtime."""

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from alignup.agent.desk import Desk
from alignup.agent.pods import dns, plans
from alignup.agent.pods.cpusets import Cpusets
from alignup.agent.pods.images import Images
from alignup.agent.pods.runner import Runner
from alignup.agent.pods.scene import Scene
from alignup.agent.pods.tools import Errand, Tools
from alignup.agent.pods.worker import Tell
from alignup.agent.standing import Clock
from alignup.align.host import Host
from alignup.align.quantity import Quantity
from alignup.align.workload import Amounts
from alignup.align.workload.names import CPU, MEMORY
from alignup.enforce.cri.client import Deadlines, Runtime
from alignup.enforce.cri.groups import Driver, Groups
from alignup.enforce.cri.plan import Condition
from alignup.enforce.cri.resources import Ground
from alignup.kube.configuration import ContainerSettings
from alignup.kube.spec import Permission

_IDS = uuid.UUID("4a7c54f7-9f0e-5f3b-8b1d-6d2f0a3f5b11")  # made once; ids made from it stay the same for ever
_RESOLVER = Path("/etc/resolv.conf")
_NOWHERE = ("192.0.2.1", 9)  #: an address for documentation: nothing is sent there, but the way to it is the usual one


@dataclass(frozen=True, slots=True, kw_only=True)
class Containers:
    """How pods are to be run."""

    endpoint: Path  #: the runtime's socket
    log_root: Path
    allowed: frozenset[Permission] = frozenset()
    network: str = "auto"  #: ``cni``, ``host``, or whichever the runtime has
    cgroup_driver: str = "auto"  #: ``cgroupfs`` or ``systemd``, or as the runtime says
    cgroup_root: str | None = "alignup"  #: under which pods have their groups; ``None``: as the runtime likes
    settings: ContainerSettings = field(default_factory=ContainerSettings)
    limits: Amounts = field(default_factory=dict)  #: what all pods together are held to; empty: whatever there is
    deadlines: Deadlines = field(default_factory=Deadlines)  #: how long the runtime may take


@asynccontextmanager
async def running(  # noqa: PLR0913 - everybody who is spoken to
    containers: Containers,
    desk: Desk,
    *,
    root: Path,
    errands: Errand,
    clock: Clock,
    tell: Tell,
    log: FilteringBoundLogger,
) -> AsyncIterator[Runner]:
    """Run the pods of *desk* as long as this lasts; ``EnforceError`` where the runtime cannot be used."""
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(Runtime(containers.endpoint, deadlines=containers.deadlines))
        identity = await runtime.identity()
        on_host = _on_host(containers.network, await runtime.conditions())
        driver = containers.cgroup_driver
        if driver == "auto":
            driver = await runtime.cgroup_driver() or Driver.CGROUPFS
        log.info(
            "runtime",
            detail=f"{identity.name} {identity.version} at {containers.endpoint}",
            network="host" if on_host else "cni",
            cgroups=driver,
        )
        groups = None
        if containers.cgroup_root is not None:
            groups = Groups(root=containers.cgroup_root, driver=Driver(driver))
        agent = _name(root)
        scene = Scene(runtime, agent)
        tools = Tools(
            runtime=runtime,
            identity=identity,
            scene=scene,
            cpusets=Cpusets(lambda: desk.settled, scene.pods, runtime, log),
            images=Images(runtime),
            groups=groups,
            ground=_ground(containers.settings, groups or Groups(), desk.host),
            errands=errands,
            desk=desk,
            place=_place(containers, desk.host, agent=agent, on_host=on_host),
            settings=containers.settings,
            limits=containers.limits,
            root=root,
            log=log,
        )
        runner = Runner(tools, allowed=containers.allowed, clock=clock, tell=tell)
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


def _on_host(network: str, conditions: tuple[Condition, ...]) -> bool:
    """Whether pods share the host's network."""
    if network != "auto":
        return network == "host"
    return not any(one.type == "NetworkReady" and one.ready for one in conditions)


def _place(containers: Containers, host: Host, *, agent: str, on_host: bool) -> plans.Place:
    return plans.Place(
        agent=agent,
        log_root=containers.log_root,
        host_network=on_host,
        host=socket.gethostname(),
        host_ips=_addresses(),
        dns=dns.of_host(_resolver()),
        allocatable=_allocatable(host),
        seccomp=plans.RUNTIME_DEFAULT if containers.settings.seccomp_default else plans.UNCONFINED,
    )


def _ground(settings: ContainerSettings, groups: Groups, host: Host) -> Ground:
    """What limits depend on here, and how they are held."""
    return replace(
        groups.ground(memory=_memory(host)),
        quota=settings.cpu_quota,
        period=settings.cpu_period,
        processes=settings.processes,
        killed_together=settings.killed_together,
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
