"""Run all admitted pods on one container runtime, each with its own worker.

The runner follows the agent's state: an admitted pod gets a worker; a terminating pod's worker stops it, and only when
nothing of it is left are its resources released. After a restart of the agent, workers continue from the status in the
runtime. Sandboxes of unknown pods are reported and left alone.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import suppress
from typing import Any

from alignup.agent.pod_record import PodRecord
from alignup.agent.pods.files import logs, volumes
from alignup.agent.pods.operations import PodOperations
from alignup.agent.pods.pod_state import LIVE_STATES, PodStartError, describe_bug
from alignup.agent.pods.runtime import RuntimeContext
from alignup.agent.pods.worker import EventSink, PodWork, PodWorker
from alignup.agent.state import Clock
from alignup.agent.transaction import Transaction
from alignup.align.errors import AlignError, PodError
from alignup.align.workload import Pod
from alignup.documents.api import LogQuery, OrphanSandbox, RuntimeInfo, RuntimeStatus
from alignup.documents.run_status import ContainerRunStatus, PodRunStatus
from alignup.kubernetes.podspec import pod_spec_of
from alignup.kubernetes.podspec.types import Permission, PodSpec
from alignup.run.cri.resources import node_cgroup_resources

MAX_RELEASED_PODS = 1_000  #: released pods that are remembered, in case the runtime still completes something of them

_ORPHAN = "created by an agent with this root directory, for a pod that it no longer knows"
_NO_MANIFEST = "admitted by an agent that did not run pods; release the pod and admit it again"
_INVALID_MANIFEST = "running containers continue and nothing new starts; release the pod and admit it again"


class PodRunner:
    def __init__(
        self, context: RuntimeContext, *, allowed: frozenset[Permission], clock: Clock, emit: EventSink
    ) -> None:
        self._queue = context.queue
        self._context = context
        self._allowed = allowed
        self._clock = clock
        self._emit = emit
        self._log = context.log
        self._intervals = context.intervals
        self._loop = asyncio.get_running_loop()
        self._workers: dict[str, PodWorker] = {}  #: by uid
        self._tasks: dict[str, asyncio.Task[None]] = {}  #: by uid, of workers, and of cleanups of pods without one
        self._invalid: dict[str, str] = {}  #: uid → why its manifest cannot be parsed
        self._finished: Mapping[str, PodRecord] = {}  #: the finished pods at the last sync
        self._released: dict[str, Pod] = {}  #: by uid, oldest first
        self._maintenance: asyncio.Task[None] | None = None
        self._balanced: Mapping[str, PodRecord] = {}  #: the pods at the last update of the QoS cgroups
        self._changed = asyncio.Event()
        self._problem = ""  #: why the runtime is not available; empty: it is
        self._unknown: dict[str, float] = {}  #: unknown sandbox → since when
        self._orphans: tuple[OrphanSandbox, ...] = ()
        self._maintained_at = -math.inf
        self._node_limited = False  #: whether the node allocatable is enforced

    def run_status(self, record: PodRecord) -> PodRunStatus:
        worker = self._workers.get(record.pod.uid)
        if worker is not None:
            found = worker.run_status
        elif not record.pod.manifest:
            found = PodRunStatus(phase="Unknown", reason="NoManifest", message=_NO_MANIFEST)
        elif (work := self._work(record)) is not None:
            found = PodRunStatus(phase="Pending", warnings=work.warnings)
        else:
            message = self._invalid[record.pod.uid]
            found = PodRunStatus(phase="Unknown", reason="InvalidManifest", message=message)
        return found.replace(ending=record.termination is not None)

    def status(self) -> RuntimeStatus:
        context = self._context
        return RuntimeStatus(
            runtime=RuntimeInfo(
                name=context.version.name,
                version=context.version.version,
                endpoint=str(context.runtime.path),
                ready=not self._problem,
                network="host" if context.host_config.host_network else "cni",
                others=context.cache.foreign_sandboxes,
            ),
            strays=self._orphans,
            problems=(self._problem,) if self._problem else (),
        )

    async def logs(self, pod: Pod, run: PodRunStatus, query: LogQuery) -> AsyncIterator[bytes]:
        """The log of a container; ``LookupError`` if there is none."""
        container = _select_container(run, query.container)
        if query.previous and container.restarts == 0:
            raise LookupError(f"container {container.name} has not restarted, so it has no previous log")
        if container.state == "waiting" and container.last is None:
            why = ": ".join(filter(None, (container.reason, container.message)))
            raise LookupError(f"container {container.name} has not started yet{f': {why}' if why else ''}")
        attempt = container.restarts - query.previous
        try:
            path = self._context.log_file(pod, container.name, attempt)
        except PodStartError as error:
            raise LookupError(f"there are no logs: {error}") from error

        def is_running() -> bool:
            instances = self._context.cache.of(pod.uid).instances(container.name)
            return any(one.attempt == attempt and one.state in LIVE_STATES for one in instances)

        return await logs.read_log(path, query, is_running=is_running)

    def wake_up(self) -> None:
        """Sync soon, because the agent's state may have changed; callable from any thread."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._changed.set)

    async def run(self) -> None:
        """Run pods until cancelled; their containers keep running."""
        try:
            while True:
                self._changed.clear()
                try:
                    await self._sync()
                except Exception as error:  # noqa: BLE001 - a bug must not stop the other pods
                    self._context.warn_once(describe_bug(error))
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._intervals.poll):
                        await self._changed.wait()
        finally:
            tasks = [*self._tasks.values(), *filter(None, [self._maintenance])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _sync(self) -> None:
        await self._refresh()
        self._sync_pods()
        if self._problem or self._maintenance is not None:
            return
        due = self._clock.monotonic() - self._maintained_at >= self._intervals.maintenance
        if due:
            self._maintained_at = self._clock.monotonic()
        unbalanced = self._context.cgroups is not None and self._queue.state.admitted is not self._balanced
        if due or unbalanced or self._context.cpusets.is_stale:
            # A task, because the runtime may be slow and pods come and go meanwhile.
            self._maintenance = asyncio.create_task(self._maintain(full=due), name="maintenance")

    async def _maintain(self, *, full: bool) -> None:
        """Update cpusets and cgroups; with *full*, also rotate logs and remove leftover directories."""
        try:
            await self._context.cpusets.reconcile()
            await self._limit_node()
            await self._balance()
            if full:
                await self._context.rotate_logs()
                on_disk = await asyncio.to_thread(volumes.pods_on_disk, self._context.root)
                state = self._queue.state
                for uid in on_disk - state.admitted.keys() - self._context.cache.pods.keys():
                    # A crash during a cleanup left it; orphans keep theirs.
                    finished = state.finished.get(uid)
                    pod = finished.pod if finished is not None else Pod(name="", uid=uid)
                    self._start_task(uid, self._clean_up(pod, with_logs=False))
        except Exception as error:  # noqa: BLE001 - the next pass tries again
            self._context.warn_once(str(error) if isinstance(error, AlignError) else describe_bug(error))
        finally:
            self._maintenance = None

    async def _limit_node(self) -> None:
        """Enforce the node allocatable on all pods together, until that has succeeded once."""
        context = self._context
        if self._node_limited or context.cgroups is None or not context.limits:
            return
        resources = node_cgroup_resources(context.limits, node_limits=context.node_limits)
        warnings = await asyncio.to_thread(context.cgroups.limit_all_pods, resources)
        self._node_limited = not warnings
        for warning in warnings:
            context.warn_once(warning)

    async def _balance(self) -> None:
        """Give the Burstable QoS cgroup its share of CPU time when pods have come or gone."""
        cgroups, before = self._context.cgroups, self._balanced
        admitted = self._balanced = self._queue.state.admitted  # a failure would repeat until the pods change
        if cgroups is None or admitted.keys() == before.keys():
            return
        pods = [record.pod for record in admitted.values() if record.pod.manifest]
        for warning in await asyncio.to_thread(cgroups.set_burstable_shares, pods):
            self._context.warn_once(warning)

    async def _refresh(self) -> None:
        """Refresh the runtime's status; each problem is logged once."""
        try:
            changed = await self._context.cache.refresh()
        except AlignError as error:
            if self._problem != str(error):
                what = "running containers continue; nothing starts or stops until the runtime is back"
                self._log.error("runtime", detail=f"{error}; {what}")
            self._problem = str(error)
            return
        if self._problem:
            self._log.info("runtime", detail=f"{self._context.version.name} is available again")
            changed |= self._workers.keys()
        self._problem = ""
        for uid in changed & self._workers.keys():
            self._workers[uid].wake_up()
        self._find_orphans()

    def _sync_pods(self) -> None:
        """Start workers, terminate pods, and clean up after those that are gone."""
        state, cached = self._queue.state, self._context.cache.pods.keys()
        for uid, record in state.admitted.items():
            try:
                worker = self._workers.get(uid)
                if worker is None:
                    self._start_worker(record)
                elif record.termination is not None:
                    worker.terminate(record.termination)
            except Exception as error:  # noqa: BLE001 - a bug with one pod must not stop the others
                self._context.warn_once(f"pod {record.pod.namespace}/{record.pod.name}: {describe_bug(error)}")
        self._invalid = {uid: why for uid, why in self._invalid.items() if uid in state.admitted}
        for uid, finished in state.finished.items():
            released = finished.termination is not None
            if released or uid in cached:
                self._start_task(uid, self._clean_up(finished.pod, with_logs=released, release=released))
        for uid in self._finished.keys() - state.finished.keys() - state.admitted.keys() - self._released.keys():
            # Dropped because there were too many finished pods: its logs are no longer accessible.
            self._start_task(uid, self._clean_up(self._finished[uid].pod, with_logs=True))
        self._finished = state.finished
        for uid in (cached & self._released.keys()) - state.admitted.keys() - state.finished.keys():
            # The runtime completed a request after the pod was cleaned up.
            self._start_task(uid, self._clean_up(self._released[uid], with_logs=True))

    def _start_worker(self, record: PodRecord) -> None:
        uid = record.pod.uid
        if not record.pod.manifest:
            if record.termination is not None:
                self._start_task(uid, self._release(record.pod))
            return
        cleaning_up = uid in self._tasks  # an earlier pod with this uid
        known_invalid = uid in self._invalid and record.termination is None
        work = None if cleaning_up or known_invalid else self._work(record)
        if work is None:
            return
        for warning in work.warnings:
            self._log.warning("manifest", pod=f"{record.pod.namespace}/{record.pod.name}", detail=warning)
        operations = PodOperations(self._context, record, work.spec)
        worker = self._workers[uid] = PodWorker(
            work, operations, clock=self._clock, emit=self._emit, intervals=self._intervals
        )
        self._released.pop(uid, None)
        self._start_task(uid, self._run_worker(worker, record.pod))

    def _work(self, record: PodRecord) -> PodWork | None:
        """What to run; nothing new starts if the agent's permissions no longer allow the pod.

        ``None``: the manifest cannot be parsed (by a newer version, for example) and the pod is not terminating.
        """
        pod = record.pod
        try:
            parsed = pod_spec_of(pod)
            parsed.check(frozenset(Permission))
        except (PodError, ValueError, TypeError, KeyError, AttributeError) as error:
            if record.termination is None:
                self._invalid[pod.uid] = f"cannot parse the manifest: {error}; {_INVALID_MANIFEST}"
                self._context.warn_once(f"pod {pod.namespace}/{pod.name}: {self._invalid[pod.uid]}")
                return None
            return PodWork(record=record, spec=PodSpec(name=pod.name, namespace=pod.namespace))
        not_allowed = ""
        try:
            parsed.check(self._allowed)
        except PodError as error:
            not_allowed = f"containers no longer start: {error}"
        return PodWork(record=record, spec=parsed.spec, warnings=parsed.warnings, not_allowed=not_allowed)

    async def _run_worker(self, worker: PodWorker, pod: Pod) -> None:
        """Run a worker to its end, then clean up and release the pod's resources."""
        run = await self._context.retry_forever(worker.run)
        if worker.termination_requested:
            await self._clean_up(pod, with_logs=True, release=True)
        else:
            # The containers prove that the pod has run, so they stay until its end is recorded.
            await self._context.retry_forever(lambda: self._queue.run(Transaction.finish, pod.uid, run))
            await self._clean_up(pod, with_logs=False)

    async def _clean_up(self, pod: Pod, *, with_logs: bool, release: bool = False) -> None:
        await self._context.retry_forever(lambda: self._context.clean_up_pod(pod, with_logs=with_logs))
        if release:
            await self._release(pod)

    async def _release(self, pod: Pod) -> None:
        await self._context.retry_forever(lambda: self._queue.run(Transaction.release, pod.uid))
        self._released[pod.uid] = pod
        if len(self._released) > MAX_RELEASED_PODS:
            del self._released[next(iter(self._released))]

    def _start_task(self, uid: str, work: Coroutine[Any, Any, None]) -> None:
        """Run the worker or the cleanup of a pod, unless it has one already."""
        if uid in self._tasks:
            work.close()
            return
        task = self._tasks[uid] = asyncio.create_task(work, name=f"pod {uid}")

        def done(_: asyncio.Task[None]) -> None:
            del self._tasks[uid]
            self._workers.pop(uid, None)
            self.wake_up()

        task.add_done_callback(done)

    def _find_orphans(self) -> None:
        """Report sandboxes that an agent with this root directory created for pods it no longer knows."""
        state, now, cache = self._queue.state, self._clock.monotonic(), self._context.cache
        known = state.admitted.keys() | state.finished.keys() | self._tasks.keys()
        found = {one.id: one for uid in cache.pods.keys() - known for one in cache.of(uid).sandboxes}
        self._unknown = {id_: self._unknown.get(id_, now) for id_ in found}
        before = {orphan.id for orphan in self._orphans}
        self._orphans = tuple(
            OrphanSandbox(
                id=id_,
                pod=f"{sandbox.namespace}/{sandbox.name}",
                uid=sandbox.uid,
                containers=tuple(one.name for one in cache.of(sandbox.uid).containers if one.sandbox == id_),
                why=_ORPHAN,
            )
            for id_, sandbox in found.items()
            if now - self._unknown[id_] >= self._intervals.orphan_delay
        )
        for orphan in self._orphans:
            if orphan.id not in before:
                self._log.warning("stray", pod=orphan.pod, detail=f"{orphan.why}; left alone", id=orphan.id)


def _select_container(run: PodRunStatus, name: str) -> ContainerRunStatus:
    """The container called *name*, or by default the first app container."""
    names = ", ".join(one.name for one in run.containers)
    for one in run.containers:
        if one.name == name or (not name and one.kind == "app"):
            return one
    what = f"container {name}" if name else "containers"
    raise LookupError(f"the pod has no {what}{f', only {names}' if names or name else ''}")
