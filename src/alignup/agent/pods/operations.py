"""What is done for one pod: its directories, sandbox, images and containers, and the cleaning up after it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic, time
from typing import TypeVar

from alignup.agent.pod_record import PodRecord
from alignup.agent.pods import cleanup, cri_config, etc_hosts, hooks, logs, volumes
from alignup.agent.pods.cpusets import CpusetPlacement, placement_of
from alignup.agent.pods.environment import PodFacts, make_environment
from alignup.agent.pods.errors import PodStartError
from alignup.agent.pods.images import verify_run_as_non_root
from alignup.agent.pods.pod_state import (
    CreateSandbox,
    PodStatus,
    ProbeStatus,
    RemoveFromRuntime,
    StartContainer,
    StopContainer,
)
from alignup.agent.pods.probes import Prober, ProbeTarget
from alignup.agent.pods.retry import describe_bug
from alignup.agent.pods.runtime_context import RuntimeContext
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.errors import CriError, EnforceError, PluginError, StateError
from alignup.align.workload import Container
from alignup.enforce.cri.resources import container_resources, pod_cgroup_resources
from alignup.enforce.cri.types import (
    ContainerMount,
    ContainerState,
    CriContainer,
    CriImage,
    ExecResult,
    LinuxResources,
    SandboxConfig,
)
from alignup.kube.podspec.types import ContainerSpec, LifecycleHook, PodSpec
from alignup.plugins.allocate_response import AllocateResponse, merge_responses
from alignup.schema.api import BusyError, NotReadyError

MIN_STOP_SECONDS = 2.0  #: seconds a container has after its hook, as with the kubelet
LOOPBACK = "127.0.0.1"
CANCEL_GRACE_SECONDS = 5.0  #: seconds for the runtime to finish what nobody waits for any more
PROBER_RESTART_SECONDS = 10.0  #: seconds until a container is probed again where that failed by a fault of ours

_HOSTS_FILE = Path(volumes.HOSTS_PATH)

_Answer = TypeVar("_Answer")


class PodOperations:
    """Does things for one pod."""

    def __init__(self, tools: RuntimeContext, known: PodRecord, spec: PodSpec) -> None:
        self._tools = tools
        self._known = known
        self._pod = known.pod
        self._spec = spec
        self._place = tools.place
        self._seen = PodStatus()
        self._probers: dict[str, asyncio.Task[None]] = {}  #: by container id
        self._words: dict[str, str] = {}  #: container id → what it said last

    async def look(self) -> PodStatus:
        """What there is of the pod."""
        seen = await self._tools.cache.refresh_pod(self._pod.uid)
        self._words = {
            one.id: await self._last_words(one) for one in seen.containers if one.state is ContainerState.EXITED
        }
        told = tuple(replace(one, message=self._words.get(one.id) or one.message) for one in seen.containers)
        self._seen = replace(seen, containers=told)
        return self._seen

    def places(self) -> Mapping[str, tuple[CpuSet, NodeSet]]:
        """Where its containers belong, by name."""
        host = self._tools.desk.settled
        if self._pod.uid not in host.ledger.pods:
            return {}
        spots = {one.name: placement_of(host, self._pod.uid, one.name) for one in self._spec.containers}
        return {name: (spot.cpus, spot.nodes) for name, spot in spots.items()}

    async def make_sandbox(self, act: CreateSandbox) -> None:
        """Make directories, the group around all containers, and a sandbox."""
        try:
            if act.instead_of:
                await self._tools.runtime.stop_sandbox(act.instead_of)
            plan = self._sandbox_plan(act.attempt)
            await asyncio.to_thread(self._prepare, plan)
            await _whole(self._tools.runtime.run_sandbox(plan))
        except EnforceError as error:
            raise PodStartError("FailedCreatePodSandBox", str(error)) from error

    async def start(self, act: StartContainer) -> None:
        """Make a container and start it."""
        container = next(one for one in self._spec.containers if one.name == act.container)
        image = await self._tools.images.ensure_image(container)
        verify_run_as_non_root(container, image)
        await self._announce(container)
        made = await self._make(act, container, image=image)
        try:
            await _whole(self._tools.runtime.start(made))
        except CriError as error:
            raise PodStartError("RunContainerError", str(error)) from error
        if container.post_start is not None:
            await self._greet(made, container, container.post_start)

    async def stop(self, act: StopContainer) -> None:
        """Stop a container: its hook first, then the signal, within one time of grace."""
        container = self._container(act.container)
        left = act.grace
        if container is not None and container.pre_stop is not None:
            begun = monotonic()
            problem = await hooks.run_pre_stop(container.pre_stop, partial(self._execute, act.id), grace=act.grace)
            if problem:
                self._tools.warn_once(
                    f"pod {self._pod.namespace}/{self._pod.name}, container {act.container}: {problem}"
                )
            left = max(act.grace - (monotonic() - begun), min(MIN_STOP_SECONDS, act.grace))
        await self._tools.runtime.stop(act.id, grace=left)

    async def stop_sandbox(self, id_: str) -> None:
        """Stop a sandbox."""
        await self._tools.runtime.stop_sandbox(id_)

    async def discard(self, act: RemoveFromRuntime) -> None:
        """Remove a container or a sandbox, with all that its containers printed."""
        for one in self._seen.containers:
            if act.id in {one.id, one.sandbox}:
                await asyncio.to_thread(cleanup.remove_container_files, self._tools, self._pod, one)
        # Last, for then the next one may be made under the same name.
        runtime = self._tools.runtime
        await (runtime.remove_sandbox(act.id) if act.sandbox else runtime.remove(act.id))

    def watch(self, seen: PodStatus, health: Callable[[str, ProbeStatus], None]) -> None:
        """Probe just the containers that run now."""
        running = {one.id: one for one in seen.containers if one.state is ContainerState.RUNNING}
        for id_ in self._probers.keys() - running.keys():
            self._probers.pop(id_).cancel()
        for id_ in running.keys() - self._probers.keys():
            container = self._container(running[id_].name)
            if container is not None and (container.startup or container.liveness or container.readiness):
                self._probers[id_] = self._probed(running[id_], container, partial(health, id_))

    def _prepare(self, plan: SandboxConfig) -> None:
        """Make what a sandbox stands on."""
        volumes.prepare_volumes(self._tools.root, self._spec, facts=self._facts())
        try:
            Path(plan.log_directory).mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            raise EnforceError(f"there can be no logs at {plan.log_directory}: {error.strerror}") from error
        if self._tools.groups is None:
            return
        owns = any(self._spot(one.name).exclusive for one in self._spec.containers)
        held_to = pod_cgroup_resources(self._pod, ground=self._tools.ground, exclusive=owns)
        for note in self._tools.groups.make(self._pod, held_to):
            self._tools.warn_once(note)

    async def _announce(self, container: ContainerSpec) -> None:
        """Those who have to know that a container starts are told."""
        uid = self._pod.uid
        try:
            await self._tools.desk.started(uid, container.name)
            await self._tools.errands.pre_start(uid, container.name)
        except (PluginError, StateError, NotReadyError, BusyError) as error:
            raise PodStartError("PreStartHookError", str(error)) from error

    async def _make(self, act: StartContainer, container: ContainerSpec, *, image: CriImage) -> str:
        """Make a container where it belongs; its id."""
        sandbox = self._sandbox_plan(self._attempt(act.sandbox))
        grant = self._grant(container.name)
        facts = self._facts(self._addresses(act.sandbox))
        envs = make_environment(container, facts, granted=grant.envs)
        mounts = await asyncio.to_thread(self._mounts, container, act.attempt, facts=facts, envs=envs)
        name = (self._pod.uid, container.name)
        async with self._tools.cpusets.creating(*name) as spot:
            plan = cri_config.container_config(
                self._pod,
                self._spec,
                container,
                attempt=act.attempt,
                image=image,
                resources=self._resources(container.name, spot),
                place=self._place,
                envs=envs,
                mounts=mounts,
                grant=grant,
            )
            try:
                made = await _whole(self._tools.runtime.create(act.sandbox, plan, sandbox=sandbox))
            except CriError as error:
                raise PodStartError("CreateContainerError", str(error)) from error
            self._tools.cpusets.created_in(made, name, spot)
        return made

    async def _greet(self, id_: str, container: ContainerSpec, hook: LifecycleHook) -> None:
        """Run what is to run when a container has started; it is stopped where that fails."""
        try:
            await hooks.run_post_start(hook, partial(self._execute, id_), container=container.name)
        except PodStartError:
            with suppress(CriError):  # it runs on, and is stopped with its pod
                await self._tools.runtime.stop(id_, grace=self._spec.grace)
            raise

    def _probed(
        self, running: CriContainer, container: ContainerSpec, tell: Callable[[ProbeStatus], None]
    ) -> asyncio.Task[None]:
        """Have a container asked how it is, until that is cancelled."""
        addresses = self._facts(self._addresses(running.sandbox)).pod_ips
        target = ProbeTarget(
            container=container,
            address=addresses[0] if addresses else LOOPBACK,
            execute=partial(self._execute, running.id),
        )
        prober = Prober(target, tell=tell, since=running.started, now=time)
        return asyncio.create_task(self._probe(prober, container.name), name=f"probes {running.id}")

    async def _probe(self, prober: Prober, container: str) -> None:
        """Have it asked whatever happens: nobody else would notice that it is not."""
        while True:
            try:
                await prober.run()
            except Exception as error:  # noqa: BLE001 - a container that nobody probes is taken for well
                who = f"pod {self._pod.namespace}/{self._pod.name}, probes of {container}"
                self._tools.warn_once(f"{who}: {describe_bug(error)}")
                await asyncio.sleep(PROBER_RESTART_SECONDS)
            else:
                return

    async def _last_words(self, one: CriContainer) -> str:
        """What a container said last, read once."""
        known = self._words.get(one.id)
        return await asyncio.to_thread(self._read_words, one) if known is None else known

    def _read_words(self, one: CriContainer) -> str:
        said = volumes.read_termination_message(
            self._tools.root, self._pod.uid, container=one.name, attempt=one.attempt
        )
        spec = self._container(one.name)
        if said or spec is None or not spec.fallback_to_logs_on_error or one.exit_code == 0:
            return said
        return logs.log_tail(
            cri_config.log_directory(self._place.log_root, self._pod) / cri_config.log_path(one.name, one.attempt)
        )

    def _container(self, name: str) -> ContainerSpec | None:
        return next((one for one in self._spec.containers if one.name == name), None)

    def _asked(self, name: str) -> Container:
        return next(one for one in self._pod.everyone if one.name == name)

    def _spot(self, name: str) -> CpusetPlacement:
        """Where a container belongs as things stand."""
        return placement_of(self._tools.desk.settled, self._pod.uid, name)

    def _resources(self, name: str, spot: CpusetPlacement) -> LinuxResources:
        """What a container is held to."""
        return container_resources(
            self._pod,
            self._asked(name),
            ground=self._tools.ground,
            exclusive=spot.exclusive,
            cpus=spot.cpus,
            nodes=spot.nodes,
        )

    def _sandbox_plan(self, attempt: int) -> SandboxConfig:
        """The same plan for the same attempt: whoever makes a container has to tell it again."""
        parent = "" if self._tools.groups is None else self._tools.groups.parent(self._pod)
        place = replace(self._place, cgroup_parent=parent)
        return cri_config.sandbox_config(self._pod, self._spec, attempt=attempt, place=place)

    def _attempt(self, sandbox: str) -> int:
        return next((one.attempt for one in self._seen.sandboxes if one.id == sandbox), 0)

    def _addresses(self, sandbox: str) -> tuple[str, ...]:
        return next((one.ips for one in self._seen.sandboxes if one.id == sandbox), ())

    def _grant(self, name: str) -> AllocateResponse:
        """What device plugins gave a container, all of it."""
        given = self._known.grants.get(name, {})
        return merge_responses({resource: AllocateResponse.from_document(dict(one)) for resource, one in given.items()})

    def _facts(self, addresses: tuple[str, ...] = ()) -> PodFacts:
        return cri_config.pod_facts(self._pod, self._spec, place=self._place, addresses=addresses)

    def _mounts(
        self, container: ContainerSpec, attempt: int, *, facts: PodFacts, envs: Mapping[str, str]
    ) -> tuple[ContainerMount, ...]:
        """What a container sees of the host, made ready."""
        directories = volumes.prepare_volumes(self._tools.root, self._spec, facts=facts)
        on_host = cri_config.shares_network(self._spec, self._place)
        try:
            told = etc_hosts.hosts_file_content(
                self._spec,
                hostname="" if on_host else cri_config.hostname(self._spec),
                addresses=facts.pod_ips,
                host_file=_HOSTS_FILE if on_host else None,
            )
        except OSError as error:
            what = f"{_HOSTS_FILE} of the host cannot be read: {error.strerror}"
            raise PodStartError("CreateContainerConfigError", what) from error
        return volumes.build_mounts(directories, container, attempt=attempt, hosts=told, envs=envs)

    async def _execute(self, id_: str, command: tuple[str, ...], seconds: float) -> ExecResult:
        return await self._tools.runtime.execute(id_, command, seconds=seconds)


async def _whole(asked: Awaitable[_Answer]) -> _Answer:
    """What the runtime answers; whoever is cancelled waits for it first, for what it has begun it goes on with.

    Else a sandbox could turn up after all of its pod was cleaned away.
    """
    task = asyncio.ensure_future(asked)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # which nobody wants to know
        try:
            await asyncio.wait([task], timeout=CANCEL_GRACE_SECONDS)
        finally:
            task.cancel()
        raise
