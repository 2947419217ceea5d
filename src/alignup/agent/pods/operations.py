"""Perform the actions of one pod: create, start, stop and remove its sandboxes and containers, and run its probes."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic, time
from typing import TypeVar

from alignup.agent.pod_record import PodRecord
from alignup.agent.pods import cri_config, probes
from alignup.agent.pods.cpusets import CpusetPlacement, placement_of
from alignup.agent.pods.environment import PodFacts, make_environment
from alignup.agent.pods.files import logs, volumes
from alignup.agent.pods.pod_state import (
    CreateSandbox,
    PodStartError,
    PodStatus,
    ProbeStatus,
    RemoveFromRuntime,
    StartContainer,
    StopContainer,
    describe_bug,
)
from alignup.agent.pods.probes import ExecSync, Prober, ProbeTarget
from alignup.agent.pods.runtime import RuntimeContext, verify_run_as_non_root
from alignup.agent.transaction import Transaction
from alignup.align.errors import CriError, EnforceError, PluginError, StateError
from alignup.documents.api import BusyError, NotReadyError
from alignup.kubernetes.plugins.allocate_response import AllocateResponse, merge_responses
from alignup.kubernetes.podspec.types import ContainerSpec, PodSpec
from alignup.run.cri.resources import container_resources, pod_cgroup_resources
from alignup.run.cri.types import ContainerMount, ContainerState, CriContainer, CriImage, SandboxConfig

_Result = TypeVar("_Result")


class PodOperations:
    """Methods raise ``PodStartError`` or an ``AlignError`` when they fail."""

    def __init__(self, context: RuntimeContext, record: PodRecord, spec: PodSpec) -> None:
        self._context = context
        self._runtime = context.runtime
        self._record = record
        self._pod = record.pod
        self._spec = spec
        self._host = context.host_config
        self._status = PodStatus()
        self._probers: dict[str, asyncio.Task[None]] = {}  #: by container id
        self._messages: dict[str, str] = {}  #: container id → termination message, read once

    async def refresh(self) -> PodStatus:
        """Read the status of the pod, with termination messages."""
        status = await self._context.cache.refresh_pod(self._pod.uid)
        messages = {}
        for one in status.containers:
            if one.state is ContainerState.EXITED:
                known = self._messages.get(one.id)
                messages[one.id] = await asyncio.to_thread(self._read_message, one) if known is None else known
        self._messages = messages
        containers = tuple(replace(one, message=messages.get(one.id) or one.message) for one in status.containers)
        self._status = replace(status, containers=containers)
        return self._status

    def placements(self) -> Mapping[str, CpusetPlacement]:
        """The placement of each container; empty if the pod is no longer admitted."""
        host = self._context.queue.settled_host
        admitted = self._pod.uid in host.ledger.pods
        return {one.name: placement_of(host, self._pod.uid, one.name) for one in self._spec.containers if admitted}

    async def create_sandbox(self, action: CreateSandbox) -> None:
        """Create the pod's directories, cgroup and sandbox."""
        try:
            if action.replaces:
                await self._runtime.stop_sandbox(action.replaces)
            config = self._sandbox_config(action.attempt)
            await asyncio.to_thread(self._prepare, config)
            await self._finish_if_cancelled(self._runtime.run_sandbox(config))
        except EnforceError as error:
            raise PodStartError("FailedCreatePodSandBox", str(error)) from error

    async def start(self, action: StartContainer) -> None:
        """Create and start a container, and run its postStart hook."""
        container = next(one for one in self._spec.containers if one.name == action.container)
        image = await self._context.images.ensure_image(container)
        verify_run_as_non_root(container, image)
        try:
            await self._context.queue.run(Transaction.container_started, self._pod.uid, container.name)
            await self._context.pre_start(self._pod.uid, container.name)
        except (PluginError, StateError, NotReadyError, BusyError) as error:
            raise PodStartError("PreStartHookError", str(error)) from error
        id_ = await self._create(action, container, image=image)
        try:
            async with self._context.cpusets.alone(id_):
                await self._finish_if_cancelled(self._runtime.start(id_))
        except CriError as error:
            raise PodStartError("RunContainerError", str(error)) from error
        if container.post_start is None:
            return
        try:
            await probes.run_post_start(container.post_start, self._exec(id_), container=container.name)
        except PodStartError:
            with suppress(CriError):  # it stays running until its pod stops
                await self._runtime.stop(id_, grace=self._spec.grace)
            raise

    async def stop(self, action: StopContainer) -> None:
        """Run the preStop hook and stop the container, both within one grace period."""
        container = self._container(action.container)
        left = action.grace
        if container is not None and container.pre_stop is not None:
            started_at = monotonic()
            problem = await probes.run_pre_stop(container.pre_stop, self._exec(action.id), grace=action.grace)
            if problem:
                self._warn(f"container {action.container}: {problem}")
            left = max(action.grace - (monotonic() - started_at), min(self._context.intervals.min_grace, action.grace))
        await self._runtime.stop(action.id, grace=left)

    async def stop_sandbox(self, id_: str) -> None:
        await self._runtime.stop_sandbox(id_)

    async def remove(self, action: RemoveFromRuntime) -> None:
        """Remove a container or sandbox, with the logs of its containers."""
        for one in self._status.containers:
            if action.id in {one.id, one.sandbox}:
                await asyncio.to_thread(self._context.remove_container_files, self._pod, one)
        # Last, because the next instance may use the same files from then on.
        await (self._runtime.remove_sandbox(action.id) if action.sandbox else self._runtime.remove(action.id))

    def sync_probes(self, status: PodStatus, report: Callable[[str, ProbeStatus], None]) -> None:
        """Probe exactly the containers that run; *report* is called with a container id and each new status."""
        running = {one.id: one for one in status.containers if one.state is ContainerState.RUNNING}
        for id_ in self._probers.keys() - running.keys():
            self._probers.pop(id_).cancel()
        for id_ in running.keys() - self._probers.keys():
            container = self._container(running[id_].name)
            if container is None or not (container.startup or container.liveness or container.readiness):
                continue
            address = next(iter(self._facts(running[id_].sandbox).pod_ips), "127.0.0.1")
            target = ProbeTarget(container=container, address=address, execute=self._exec(id_))
            prober = Prober(target, report=partial(report, id_), since=running[id_].started, now=time)
            self._probers[id_] = asyncio.create_task(self._probe(prober, container.name), name=f"probes {id_}")

    def _prepare(self, config: SandboxConfig) -> None:
        volumes.prepare_volumes(self._context.root, self._spec, facts=self._facts())
        try:
            Path(config.log_directory).mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            raise EnforceError(f"cannot create log directory {config.log_directory}: {error.strerror}") from error
        cgroups = self._context.cgroups
        if cgroups is None:
            return
        exclusive = any(placement.exclusive for placement in self.placements().values())
        resources = pod_cgroup_resources(self._pod, node_limits=self._context.node_limits, exclusive=exclusive)
        for warning in cgroups.create(self._pod, resources):
            self._context.warn_once(warning)

    async def _create(self, action: StartContainer, container: ContainerSpec, *, image: CriImage) -> str:
        attempt = next((one.attempt for one in self._status.sandboxes if one.id == action.sandbox), 0)
        sandbox = self._sandbox_config(attempt)
        stored = self._record.grants.get(container.name, {})
        devices = merge_responses({name: AllocateResponse.from_document(dict(one)) for name, one in stored.items()})
        facts = self._facts(action.sandbox)
        envs = make_environment(container, facts, plugin_envs=devices.envs)
        mounts = await asyncio.to_thread(self._mounts, container, action.attempt, facts=facts, envs=envs)
        key = (self._pod.uid, container.name)
        async with self._context.cpusets.creating(*key) as placement:
            resources = container_resources(
                self._pod,
                next(one for one in self._pod.all_containers if one.name == container.name),
                node_limits=self._context.node_limits,
                exclusive=placement.exclusive,
                cpus=placement.cpus,
                nodes=placement.nodes,
            )
            config = cri_config.container_config(
                self._pod,
                self._spec,
                container,
                attempt=action.attempt,
                image=image,
                resources=resources,
                host=self._host,
                envs=envs,
                mounts=mounts,
                devices=devices,
            )
            try:
                id_ = await self._finish_if_cancelled(self._runtime.create(action.sandbox, config, sandbox=sandbox))
            except CriError as error:
                raise PodStartError("CreateContainerError", str(error)) from error
            self._context.cpusets.created_in(id_, key, placement)
        return id_

    async def _probe(self, prober: Prober, container: str) -> None:
        """Restart probes that fail with a bug: a container without probes would count as healthy."""
        while True:
            try:
                await prober.run()
            except Exception as error:  # noqa: BLE001
                self._warn(f"probes of container {container}: {describe_bug(error)}")
                await asyncio.sleep(self._context.intervals.prober_restart)
            else:
                return

    def _read_message(self, one: CriContainer) -> str:
        message = volumes.read_termination_message(
            self._context.root, self._pod.uid, container=one.name, attempt=one.attempt
        )
        spec = self._container(one.name)
        if message or spec is None or not spec.fallback_to_logs_on_error or one.exit_code == 0:
            return message
        return logs.log_tail(self._context.log_file(self._pod, one.name, one.attempt))

    def _container(self, name: str) -> ContainerSpec | None:
        return next((one for one in self._spec.containers if one.name == name), None)

    def _sandbox_config(self, attempt: int) -> SandboxConfig:
        """The same for the same attempt: CRI requires it again for each container."""
        cgroups = self._context.cgroups
        host = replace(self._host, cgroup_parent="" if cgroups is None else cgroups.parent(self._pod))
        return cri_config.sandbox_config(self._pod, self._spec, attempt=attempt, host=host)

    def _facts(self, sandbox: str = "") -> PodFacts:
        """The downward API's facts, with the addresses of one sandbox."""
        addresses = next((one.ips for one in self._status.sandboxes if one.id == sandbox), ())
        return cri_config.pod_facts(self._pod, self._spec, host=self._host, addresses=addresses)

    def _mounts(
        self, container: ContainerSpec, attempt: int, *, facts: PodFacts, envs: Mapping[str, str]
    ) -> tuple[ContainerMount, ...]:
        directories = volumes.prepare_volumes(self._context.root, self._spec, facts=facts)
        on_host = cri_config.shares_network(self._spec, self._host)
        try:
            hosts = cri_config.hosts_file_content(
                self._spec,
                hostname="" if on_host else cri_config.hostname(self._spec),
                addresses=facts.pod_ips,
                host_file=self._host.hosts_file if on_host else None,
            )
        except OSError as error:
            what = f"cannot read the host's {self._host.hosts_file}: {error.strerror}"
            raise PodStartError.config(what) from error
        return volumes.build_mounts(directories, container, attempt=attempt, hosts=hosts, envs=envs)

    async def _finish_if_cancelled(self, request: Awaitable[_Result]) -> _Result:
        """Await a request to the runtime; on cancellation, wait for it to finish first.

        The runtime completes what it has started. Otherwise a sandbox could appear after its pod was cleaned up.
        """
        task = asyncio.ensure_future(request)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # the result is not needed
            try:
                await asyncio.wait([task], timeout=self._context.intervals.cancel_grace)
            finally:
                task.cancel()
            raise

    def _exec(self, id_: str) -> ExecSync:
        return lambda command, seconds: self._runtime.execute(id_, command, seconds=seconds)

    def _warn(self, text: str) -> None:
        self._context.warn_once(f"pod {self._pod.namespace}/{self._pod.name}: {text}")
