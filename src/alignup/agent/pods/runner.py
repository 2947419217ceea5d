"""All pods that are here, each lived by a worker of its own, on one container runtime.

The runner follows what stands at the desk: a pod that is admitted gets a worker, one that is told to end has its worker
end it, and only when nothing of it is left does it give back what it holds. After a restart workers go on from what the
runtime shows; what the runtime has and nobody here knows is reported, and left alone.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from alignup.agent.finished_pods import FinishedPod
from alignup.agent.pod_record import PodRecord
from alignup.agent.pods import cri_config, logs, volumes
from alignup.agent.pods.cleanup import clean_up_pod
from alignup.agent.pods.errors import PodStartError
from alignup.agent.pods.operations import PodOperations
from alignup.agent.pods.pod_state import LIVE_STATES, PodStatus
from alignup.agent.pods.retry import describe_bug, retry_forever
from alignup.agent.pods.runtime_context import RuntimeContext
from alignup.agent.pods.worker import EventSink, PodWork, PodWorker
from alignup.agent.state import Clock
from alignup.align.errors import AlignError, PodError
from alignup.align.workload import Pod
from alignup.enforce.cri.resources import node_cgroup_resources
from alignup.enforce.cri.types import CriSandbox
from alignup.kube.podspec import pod_spec_of
from alignup.kube.podspec.types import Permission, PodSpec
from alignup.schema.api import ContainerRunStatus, LogQuery, OrphanSandbox, PodRunStatus, RuntimeStatus

POLL_SECONDS = 1.0  #: seconds between looks at the runtime
MAINTENANCE_SECONDS = 10.0  #: seconds between passes over CPUs and logs, as the kubelet's
ORPHAN_DELAY_SECONDS = 5.0  #: seconds that something unknown may take to become known before it is a stray
MAX_RELEASED_PODS = 1_000  #: pods that have left and are remembered, in case something of them turns up

_UNKNOWN = "an agent of this root directory ran it, and nobody here knows its pod any more"
_NO_MANIFEST = "it was admitted when nobody ran pods here; release it, and admit it again"
_NO_SENSE = "what runs of it goes on, and nothing is started; release it, and admit it again"


@dataclass(slots=True)
class _Life:
    """A worker at work."""

    worker: PodWorker
    task: asyncio.Task[None]


class PodRunner:
    """Runs the pods of a desk with *tools*."""

    def __init__(self, tools: RuntimeContext, *, allowed: frozenset[Permission], clock: Clock, tell: EventSink) -> None:
        self._desk = tools.desk
        self._tools = tools
        self._allowed = allowed
        self._clock = clock
        self._tell = tell
        self._log = tools.log
        self._loop = asyncio.get_running_loop()
        self._lives: dict[str, _Life] = {}  #: by uid
        self._farewells: dict[str, asyncio.Task[None]] = {}  #: by uid, of pods of which something is to be removed
        self._unread: dict[str, str] = {}  #: uid → why nobody knows what is to be run
        self._finished: Mapping[str, FinishedPod] = {}  #: those that had run at the last turn
        self._gone: dict[str, Pod] = {}  #: by uid, those that left, the newest last
        self._tidying: asyncio.Task[None] | None = None
        self._balanced: Mapping[str, PodRecord] = {}  #: the pods that shares of CPU time were last dealt out among
        self._something = asyncio.Event()
        self._problem = ""  #: why the runtime cannot be asked; empty: it can
        self._unknown: dict[str, float] = {}  #: sandboxes nobody here knows, since when
        self._strays: tuple[OrphanSandbox, ...] = ()
        self._tidied = -math.inf
        self._limited = False  #: whether all pods together are held to what they may have

    def run_of(self, known: PodRecord) -> PodRunStatus:
        """How a pod is that is here."""
        life = self._lives.get(known.pod.uid)
        if life is not None:
            found = life.worker.run
        elif known.pod.manifest:
            found = self._before(known)
        else:
            found = PodRunStatus(phase="Unknown", reason="NoManifest", message=_NO_MANIFEST)
        return replace(found, ending=known.ending is not None)

    def _before(self, known: PodRecord) -> PodRunStatus:
        """How a pod is that nobody lives yet."""
        briefing = self._briefing(known)
        if briefing is not None:
            return PodRunStatus(phase="Pending", warnings=briefing.warnings)
        return PodRunStatus(phase="Unknown", reason="InvalidManifest", message=self._unread[known.pod.uid])

    def report(self) -> RuntimeStatus:
        """How the runtime is, and what it has that nobody here knows."""
        tools = self._tools
        return RuntimeStatus(
            name=tools.identity.name,
            version=tools.identity.version,
            endpoint=str(tools.runtime.path),
            ready=not self._problem,
            network="host" if tools.place.host_network else "cni",
            others=tools.cache.others,
            strays=self._strays,
            problems=(self._problem,) if self._problem else (),
        )

    async def logs(self, pod: Pod, run: PodRunStatus, query: LogQuery) -> AsyncIterator[bytes]:
        """What a container of a pod printed; ``LookupError`` with what is missing."""
        container = _chosen(run, query.container)
        if query.previous and container.restarts == 0:
            raise LookupError(f"container {container.name} was not started again, so there is nothing previous")
        if container.state == "waiting" and container.last is None:
            because = ": ".join(filter(None, (container.reason, container.message)))
            raise LookupError(f"container {container.name} has not started yet{f': {because}' if because else ''}")
        attempt = container.restarts - query.previous
        try:
            path = cri_config.log_directory(self._tools.place.log_root, pod) / cri_config.log_path(
                container.name, attempt
            )
        except PodStartError as error:
            raise LookupError(f"there are no logs: {error}") from error

        def alive() -> bool:
            seen = self._tools.cache.of(pod.uid).containers
            return any(
                one.name == container.name and one.attempt == attempt and one.state in LIVE_STATES for one in seen
            )

        return await logs.read_log(path, query, alive=alive)

    def nudge(self) -> None:
        """Something may have changed at the desk; from any thread."""
        with suppress(RuntimeError):  # the loop has ended, and all pods are left as they are
            self._loop.call_soon_threadsafe(self._something.set)

    async def run(self) -> None:
        """Run pods until cancelled; containers then go on by themselves."""
        try:
            while True:
                self._something.clear()
                try:
                    await self._turn()
                except Exception as error:  # noqa: BLE001 - whatever happens, the others are looked after
                    self._tools.warn_once(describe_bug(error))
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        await self._something.wait()
        finally:
            tasks = [*(life.task for life in self._lives.values()), *self._farewells.values()]
            tasks += [self._tidying] if self._tidying is not None else []
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _turn(self) -> None:
        """See what has changed, here and in the runtime."""
        await self._look()
        self._follow()
        if self._problem or self._tidying is not None:
            return
        due = self._clock.watch() - self._tidied >= MAINTENANCE_SECONDS
        if due:
            self._tidied = self._clock.watch()
        unbalanced = self._tools.groups is not None and self._desk.standing.held is not self._balanced
        if due or unbalanced or self._tools.cpusets.is_stale:
            self._tidying = asyncio.create_task(self._tidy(thoroughly=due), name="tidying")

    async def _tidy(self, *, thoroughly: bool) -> None:
        """Put containers where they belong, and see to logs and to what was left behind; a slow runtime is waited for.

        That is done beside, so that pods come and go meanwhile.
        """
        try:
            await self._tools.cpusets.reconcile()
            await self._limit()
            await self._balance()
            if thoroughly:
                await self._tools.rotate_logs()
                self._find_leftovers(await asyncio.to_thread(volumes.pods_on_disk, self._tools.root))
        except AlignError as error:
            self._tools.warn_once(str(error))
        except Exception as error:  # noqa: BLE001 - it is tried again the next time
            self._tools.warn_once(describe_bug(error))
        finally:
            self._tidying = None

    async def _limit(self) -> None:
        """Hold all pods together to what they may have; until that is so, it is tried again."""
        tools = self._tools
        if self._limited or tools.groups is None or not tools.limits:
            return
        notes = await asyncio.to_thread(tools.groups.limit, node_cgroup_resources(tools.limits, ground=tools.ground))
        self._limited = not notes
        for note in notes:
            tools.warn_once(note)

    async def _balance(self) -> None:
        """Give all Burstable pods together the share of CPU time they asked for, when pods have come or gone."""
        groups, before = self._tools.groups, self._balanced
        held = self._balanced = self._desk.standing.held  # what fails now would fail again, until something changes
        if groups is None or held.keys() == before.keys():
            return
        pods = [known.pod for known in held.values() if known.pod.manifest]
        for note in await asyncio.to_thread(groups.balance, pods):
            self._tools.warn_once(note)

    async def _look(self) -> None:
        """Look at the runtime; what is wrong with it is said once."""
        try:
            changed = await self._tools.cache.look()
        except AlignError as error:
            if not self._problem or self._problem != str(error):
                what = "what runs goes on, and nothing is started or stopped until it is back"
                self._log.error("runtime", detail=f"{error}; {what}")
            self._problem = str(error)
            return
        if self._problem:
            self._log.info("runtime", detail=f"{self._tools.identity.name} answers")
            changed |= self._lives.keys()
        self._problem = ""
        for uid in changed & self._lives.keys():
            self._lives[uid].worker.nudge()
        self._find_strays()

    def _follow(self) -> None:
        """Give every pod that is here a worker, and have those end that are to."""
        standing = self._desk.standing
        for uid, known in standing.held.items():
            try:
                self._attend(uid, known)
            except Exception as error:  # noqa: BLE001 - whatever one pod can do, the others are looked after
                self._tools.warn_once(f"pod {known.pod.namespace}/{known.pod.name}: {describe_bug(error)}")
        self._unread = {uid: why for uid, why in self._unread.items() if uid in standing.held}
        for uid, finished in standing.finished.items():
            if finished.known.ending is not None or uid in self._tools.cache.uids:
                self._beside(uid, self._part(finished))
        for uid in self._finished.keys() - standing.finished.keys() - standing.held.keys() - self._gone.keys():
            # It was one too many to be remembered, so nobody can ask for its logs any more.
            self._beside(uid, self._clean(self._finished[uid].known.pod, with_logs=True))
        self._finished = standing.finished
        for uid in (self._tools.cache.uids & self._gone.keys()) - standing.held.keys() - standing.finished.keys():
            # The runtime was still at it when it was given up.
            self._beside(uid, self._clean(self._gone[uid], with_logs=True))

    def _attend(self, uid: str, known: PodRecord) -> None:
        """See to one pod that is here."""
        life = self._lives.get(uid)
        if life is None:
            self._begin(known)
        elif known.ending is not None:
            life.worker.end(known.ending)

    def _begin(self, known: PodRecord) -> None:
        """Start the life of a pod that is here."""
        uid = known.pod.uid
        if not known.pod.manifest:
            if known.ending is not None:
                self._beside(uid, self._release(known.pod))
            return
        if uid in self._farewells:
            return  # of one before it of that uid
        if uid in self._unread and known.ending is None:
            return
        briefing = self._briefing(known)
        if briefing is None:
            return
        for warning in briefing.warnings:
            self._log.warning("manifest", pod=f"{known.pod.namespace}/{known.pod.name}", detail=warning)
        worker = PodWorker(
            briefing, PodOperations(self._tools, known, briefing.spec), clock=self._clock, tell=self._tell
        )
        self._gone.pop(uid, None)
        self._lives[uid] = _Life(worker, asyncio.create_task(self._live(worker, known.pod), name=f"pod {uid}"))

    def _briefing(self, known: PodRecord) -> PodWork | None:
        """What is to be run; one that may not be run any more is only looked after.

        ``None``: that cannot be read any more, by a newer alignup perhaps, and the pod was not told to end either.
        """
        try:
            parsed = pod_spec_of(known.pod)
            parsed.check(frozenset(Permission))
        except (PodError, ValueError, TypeError, KeyError, AttributeError) as error:
            if known.ending is None:
                self._unread[known.pod.uid] = f"its manifest cannot be read: {error}; {_NO_SENSE}"
                self._tools.warn_once(f"pod {known.pod.namespace}/{known.pod.name}: {self._unread[known.pod.uid]}")
                return None
            return PodWork(known=known, spec=PodSpec(name=known.pod.name, namespace=known.pod.namespace))
        barred = ""
        try:
            parsed.check(self._allowed)
        except PodError as error:
            barred = f"nothing of it is started any more: {error}"
        return PodWork(known=known, spec=parsed.spec, warnings=parsed.warnings, barred=barred)

    async def _live(self, worker: PodWorker, pod: Pod) -> None:
        """Have a pod live, and give back what it holds when it has."""
        try:
            run = await retry_forever(worker.work, self._log)
            if worker.ending:
                await self._clean(pod, with_logs=True)
                await self._release(pod)
            else:
                # Its containers are proof that it has run; so they go only when that is written down.
                await retry_forever(lambda: self._desk.finish(pod.uid, run), self._log)
                await self._clean(pod, with_logs=False)
        finally:
            del self._lives[pod.uid]
            self.nudge()

    async def _part(self, finished: FinishedPod) -> None:
        """Remove what is left of a pod that has run, and forget it when that was asked for."""
        known = finished.known
        forgotten = known.ending is not None
        await self._clean(known.pod, with_logs=forgotten)
        if forgotten:
            await self._release(known.pod)

    async def _clean(self, pod: Pod, *, with_logs: bool) -> None:
        await retry_forever(lambda: clean_up_pod(self._tools, pod, with_logs=with_logs), self._log)

    async def _release(self, pod: Pod) -> None:
        await retry_forever(lambda: self._desk.release(pod.uid), self._log)
        self._gone[pod.uid] = pod
        if len(self._gone) > MAX_RELEASED_PODS:
            del self._gone[next(iter(self._gone))]

    def _beside(self, uid: str, work: Coroutine[Any, Any, None]) -> None:
        """Have something removed of a pod that nobody lives, once at a time."""
        if uid in self._farewells or uid in self._lives:
            work.close()
            return
        task = self._farewells[uid] = asyncio.create_task(work, name=f"pod {uid}")

        def done(_: asyncio.Task[None]) -> None:
            del self._farewells[uid]
            self.nudge()

        task.add_done_callback(done)

    def _find_leftovers(self, kept: frozenset[str]) -> None:
        """Have directories removed that are of no use, after a crash in the middle of it; strays keep theirs."""
        standing = self._desk.standing
        for uid in kept - standing.held.keys() - self._tools.cache.uids:
            finished = standing.finished.get(uid)
            pod = finished.known.pod if finished is not None else Pod(name="", uid=uid)
            self._beside(uid, self._clean(pod, with_logs=False))

    def _find_strays(self) -> None:
        """Tell of sandboxes made by an agent of this root that nobody knows any more."""
        standing, now = self._desk.standing, self._clock.watch()
        known = standing.held.keys() | standing.finished.keys() | self._lives.keys() | self._farewells.keys()
        found = {
            sandbox.id: sandbox
            for uid in self._tools.cache.uids - known
            for sandbox in self._tools.cache.of(uid).sandboxes
        }
        self._unknown = {id_: self._unknown.get(id_, now) for id_ in found}
        before = {stray.id for stray in self._strays}
        self._strays = tuple(
            _stray(sandbox, self._tools.cache.of(sandbox.uid))
            for id_, sandbox in found.items()
            if now - self._unknown[id_] >= ORPHAN_DELAY_SECONDS
        )
        for stray in self._strays:
            if stray.id not in before:
                self._log.warning("stray", pod=stray.pod, detail=f"{stray.why}; it is left alone", id=stray.id)


def _stray(sandbox: CriSandbox, seen: PodStatus) -> OrphanSandbox:
    return OrphanSandbox(
        id=sandbox.id,
        pod=f"{sandbox.namespace}/{sandbox.name}",
        uid=sandbox.uid,
        containers=tuple(one.name for one in seen.containers if one.sandbox == sandbox.id),
        why=_UNKNOWN,
    )


def _chosen(run: PodRunStatus, name: str) -> ContainerRunStatus:
    """The container of that name, or without one the first that is no init container."""
    names = ", ".join(one.name for one in run.containers)
    if name:
        found = next((one for one in run.containers if one.name == name), None)
        if found is None:
            raise LookupError(f"the pod has no container {name}, only {names}")
        return found
    apps = [one for one in run.containers if one.kind == "app"]
    if not apps:
        raise LookupError(f"the pod has no containers{f', only {names}' if names else ''}")
    return apps[0]
