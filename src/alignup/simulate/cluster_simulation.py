"""The simulation of a cluster: a scheduler chooses a host for each pod, and the host's kubelet decides.

A pod that fits nowhere waits, in the order of priority and creation, until a pod ends; others may overtake it. A pod
that a kubelet rejects has failed. It is created again after 10 seconds, then after twice as long each time up to 6
minutes, as a Job does, and at most *retries* times. The pods of a gang are bound together; if a kubelet rejects one of
them, all end and are created again. A pod runs for its duration from its admission on.

Nothing takes time but the pods: schedulers, bindings and reports are immediate. The same input gives the same result.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from alignup.align.claims.alignment import ClaimState, ExplainedClaim
from alignup.align.decision import Decision
from alignup.align.devices.choices import RandomChooser
from alignup.align.workload import Pod, demand
from alignup.placement.steered import ANYWHERE, decide_steered
from alignup.placement.wait_queue import WaitQueue
from alignup.simulate.arrivals import PodSubmission
from alignup.simulate.cluster_hosts import EqualPods, EqualPodsIndex, HostGroup, SimulatedHost, build_hosts
from alignup.simulate.cluster_result import FleetResult, HostGroupUse, PodRun
from alignup.simulate.device_connections import ConnectionCounts, container_connections
from alignup.simulate.gained_pods import count_gained_pods
from alignup.simulate.node_simulation import Progress, ProgressReporter
from alignup.simulate.peak_state import PeakState
from alignup.simulate.schedulers import DEFAULT, STEERING, Members, SchedulerFactory, SteeringScheduler, find_strategy
from alignup.simulate.simulated_claims import ClaimCounts, explain_claims
from alignup.simulate.steered_pods import PodMarker, add_markers
from alignup.simulate.stranded import measure_cluster, peak_demand
from alignup.simulate.usage import AlignmentMeter, RequestMeter, summarize_waiting

if TYPE_CHECKING:
    from alignup.align.explain.device_choices import Connections

RETRIES = 6  #: as the backoffLimit of a Job
FIRST_BACKOFF, MAX_BACKOFF = 10.0, 360.0  #: seconds, as of the Job controller

#: Called with the time, the host, the pod, and the decision of its kubelet; ``None``: the pod has ended.
Recorder = Callable[[float, str, Pod, Decision | None], object]

_ClaimStates = tuple[ClaimState, ...]

_ENDS, _STARTS = 0, 1  #: kinds of events: at the same time pods end before others start


@dataclass(frozen=True, slots=True, eq=False)
class PodUnit:
    """A single pod, or all pods of a gang."""

    pods: tuple[PodSubmission, ...]
    classes: tuple[EqualPods, ...]  #: of the pods
    attempt: int = 0  #: how often kubelets have rejected it

    @property
    def time(self) -> float:
        """The time when all pods are created."""
        return max(submission.time for submission in self.pods)

    @property
    def uid(self) -> str:
        return self.pods[0].pod.uid

    @property
    def rank(self) -> tuple[int, float, str]:
        """The place in the queue; the lowest is first: the highest priority, the oldest."""
        return -max(submission.priority for submission in self.pods), self.time, self.uid


class _Placement(NamedTuple):
    """A pod on its host."""

    pod: Pod
    pod_class: EqualPods
    host: SimulatedHost


class ClusterSimulation:
    """One run; ``SettingsError`` if a kubelet would not start, or if the strategy is unknown.

    *make* makes a scheduler that ``strategies`` does not list. With *shape*, the result says how many pods like it fit
    after moves. Devices that a kubelet or its plugins choose at random
    are drawn with *seed*.
    """

    def __init__(  # noqa: PLR0913 - all but the first two have defaults
        self,
        groups: Sequence[HostGroup],
        submissions: Iterable[PodSubmission],
        strategy: str = DEFAULT,
        *,
        retries: int = RETRIES,
        seed: int = 0,
        recorder: Recorder | None = None,
        make: SchedulerFactory | None = None,
        shape: Pod | None = None,
    ) -> None:
        self._shape = shape
        self.groups = add_markers(groups) if strategy in STEERING else tuple(groups)
        self.strategy = strategy
        self._retries = retries
        self._recorder = recorder
        self.hosts = build_hosts(self.groups)
        self._marker = PodMarker(self.hosts) if strategy in STEERING else None
        self._steered: dict[str, int] = {}  #: the NUMA nodes of chosen pods that are not bound yet
        self._classes = EqualPodsIndex(self.hosts)
        self._scheduler = (make or find_strategy(strategy))(self.hosts)
        self._submissions = tuple(map(self._claiming, _with_unique_uids(submissions)))
        self._claims: list[ExplainedClaim] = []  #: of pods that started
        self._chooser = RandomChooser(seed)
        self._connections: list[Connections] = []  #: of containers of pods that started
        times = [submission.time for submission in self._submissions] or [0.0]
        self._start = min(times)
        self._last_arrival = max(times)
        self._meter = RequestMeter(self.hosts, self._start, self._last_arrival)
        self._alignment = AlignmentMeter()
        self._rejections: Counter[str] = Counter()  #: by reason
        self._started: Counter[str] = Counter()  #: by group
        self._rejected: Counter[str] = Counter()  #: by group
        self._torn_gangs = 0
        self._waits: list[float] = []  #: seconds, of pods that started
        self._events: list[tuple[float, int, str, int, PodUnit | None]] = []
        self._order = count()
        self._queue: WaitQueue[tuple[EqualPods, ...], PodUnit] = WaitQueue()
        self._running: dict[str, _Placement] = {}
        self._states: dict[str, _ClaimStates] = {}  #: of chosen and running pods with claims
        self._runs: dict[str, PodRun] = {submission.pod.uid: PodRun(submission) for submission in self._submissions}
        self._done = 0
        self._time = self._start
        self._peak: PeakState | None = None

    @property
    def runs(self) -> tuple[PodRun, ...]:
        """The outcome of each pod, in the order of the submissions."""
        return tuple(self._runs.values())

    @property
    def peak(self) -> PeakState:
        """The cluster at peak demand, or now if the simulation has not been there."""
        return self._peak or self._state(self._time)

    def run(self, progress: Progress | None = None) -> FleetResult:
        """Run until nothing happens any more; *progress* gets the number of pods that started or failed."""
        reporter = ProgressReporter(progress, len(self._submissions))
        for unit in self._units():
            self._push(unit.time, _STARTS, unit)
        peak_time = peak_demand(self._submissions)
        released_hosts: list[SimulatedHost] = []
        events = self._events
        while events:
            time, kind, uid, _, arrival = heapq.heappop(events)
            if self._peak is None and time > peak_time:
                self._peak = self._state(peak_time)
            self._time = time
            self._meter.advance(time)
            if kind == _ENDS:
                released_hosts.append(self._end(uid))
                if events and events[0][0] == time and events[0][1] == _ENDS:
                    continue
            elif arrival is not None:
                self._arrive(arrival)
            if released_hosts:
                self._start_waiting({host.name: host for host in released_hosts})
                released_hosts.clear()
            reporter.report(self._done)
        self._meter.close(max(self._time, self._last_arrival))
        if self._peak is None:
            self._peak = self._state(peak_time)
        return self._result(self._peak)

    def _state(self, time: float) -> PeakState:
        waiting_units = tuple([unit.pods for unit in self._queue])
        return PeakState(time, self.hosts, [host.kubelet.ledger for host in self.hosts], waiting_units)

    def _units(self) -> Iterable[PodUnit]:
        """Yield single pods and gangs; a gang is complete when its last pod is created."""
        gangs: dict[str, list[PodSubmission]] = defaultdict(list)
        for submission in self._submissions:
            gangs[submission.gang].append(submission)
        single = gangs.pop("", [])
        for members in [*([submission] for submission in single), *gangs.values()]:
            pods = [self._mark(member) for member in members]
            yield PodUnit(tuple(pods), tuple(map(self._classes.find, pods)))

    def _mark(self, submission: PodSubmission) -> PodSubmission:
        """Return *submission* with requests for markers, if it is to be steered."""
        if self._marker is None:
            return submission
        return self._marker.mark(submission, self._classes.find(submission))

    def _push(self, time: float, kind: int, unit: PodUnit | None = None, uid: str = "") -> None:
        heapq.heappush(self._events, (time, kind, uid, next(self._order), unit))

    def _arrive(self, unit: PodUnit) -> None:
        if not unit.attempt:
            self._meter.waiting += len(unit.pods)
        # Where earlier pods of the same kind wait, this one waits, too.
        waiting_units = self._queue.of_kind(unit.classes)
        if (waiting_units and waiting_units[0].rank <= unit.rank) or not self._try(unit):
            self._queue.put(unit.uid, unit, kind=unit.classes, order=(*unit.rank, unit.attempt))

    def _start_waiting(self, released_hosts: Mapping[str, SimulatedHost]) -> None:
        """Start waiting pods that fit after pods on these hosts have ended."""
        for classes, unit in self._queue.heads():
            may_fit = any(
                name in pod_class.hosts and pod_class.fits(host)
                for pod_class in dict.fromkeys(classes)
                for name, host in released_hosts.items()
            )
            if may_fit and self._try(unit):
                self._queue.remove(unit.uid)

    def _try(self, unit: PodUnit) -> bool:
        """Bind all pods of *unit*; false if there is no room for all."""
        pods = [submission.pod for submission in unit.pods]
        if unit.attempt:
            pods = [replace(pod, uid=f"{pod.uid}\0{unit.attempt}") for pod in pods]  # no other pod has such a uid
        members = list(zip(unit.pods, unit.classes, pods, strict=True))
        hosts = self._choose_all([(pod_class, pod) for _, pod_class, pod in members])
        if hosts is None:
            return False
        by_uid = {member[2].uid: member for member in members}
        placements = []
        for uid, host in hosts.items():
            submission, pod_class, pod = by_uid[uid]
            placements.append((submission, _Placement(pod, pod_class, host)))
        self._bind(unit, placements)
        return True

    def _choose_all(self, members: Members) -> dict[str, SimulatedHost] | None:
        """Return the hosts of *members* by uid, in the order of binding; ``None``: not all fit.

        They are chosen one after the other; if that fails, the scheduler may choose them together.
        """
        pods_and_hosts: list[tuple[Pod, SimulatedHost]] = []
        for pod_class, pod in members:
            host = self._choose(pod_class, pod)
            if host is None:
                for earlier, its_host in reversed(pods_and_hosts):
                    self._scheduler.forget(earlier, its_host)
                    self._steered.pop(earlier.uid, None)
                    if its_host.claims is not None:
                        its_host.claims.forget(earlier.uid)
                        self._states.pop(earlier.uid, None)
                # Equal members fit whatever the order of their choices, or not at all.
                different = len({pod_class for pod_class, _ in members}) > 1
                claiming = any(pod.uses_claims for _, pod in members)
                return self._scheduler.choose_together(members) if different and not claiming else None
            pods_and_hosts.append((pod, host))
        return {pod.uid: host for pod, host in pods_and_hosts}

    def _choose(self, pod_class: EqualPods, pod: Pod) -> SimulatedHost | None:
        """Return the host for *pod*; one with claims gets their devices there, as from the scheduler's DRA plugin."""
        if not pod.uses_claims:
            target = self._scheduler.choose(pod_class, pod)
            return self._steer(pod, target, ())
        claims: dict[str, _ClaimStates] = {}
        for name, number in pod_class.hosts.items():
            host = self.hosts[number]
            states = host.claims.find(pod, host.kubelet) if host.claims else ""
            if not isinstance(states, str):
                claims[name] = states
        target = self._scheduler.choose(self._classes.restrict(pod_class, claims), pod) if claims else None
        if target is not None and target.claims is not None:
            target.claims.allocate(pod, claims[target.name])
            self._states[pod.uid] = claims[target.name]
        return self._steer(pod, target, self._states.get(pod.uid, ()))

    def _steer(self, pod: Pod, host: SimulatedHost | None, claims: _ClaimStates) -> SimulatedHost | None:
        """Let the scheduler steer *pod* on its *host*, which is returned."""
        scheduler = self._scheduler
        if host is not None and isinstance(scheduler, SteeringScheduler):
            self._steered[pod.uid] = scheduler.steer(pod, host, claims)
        return host

    def _release_claims(self, uid: str, host: SimulatedHost) -> None:
        if host.claims is not None:
            host.claims.release(uid)
            self._states.pop(uid, None)

    def _claiming(self, submission: PodSubmission) -> PodSubmission:
        """Return *submission* with the extended resources that only claims serve."""
        group_claims = next((group.claims for group in self.groups if group.claims is not None), None)
        if group_claims is None:
            return submission
        pod = group_claims.objects.with_class_resources(submission.pod)
        return replace(submission, pod=replace(pod, claimed_requests=demand.claimed_requests(pod, {})))

    def _bind(self, unit: PodUnit, placements: Sequence[tuple[PodSubmission, _Placement]]) -> None:
        decisions = [self._admit(placement) for _, placement in placements]
        admitted_uids = [decision.uid for decision in decisions if decision.admitted]
        if len(admitted_uids) < len(decisions):
            for uid in admitted_uids:
                self._end(uid)
            self._torn_gangs += bool(admitted_uids)
            rejected_uids = {
                submission.pod.uid
                for (submission, _), decision in zip(placements, decisions, strict=True)
                if not decision.admitted
            }
            self._retry(unit, rejected_uids)
            return
        for (submission, (pod, _, host)), decision in zip(placements, decisions, strict=True):
            run = self._runs[submission.pod.uid]
            self._runs[submission.pod.uid] = run._replace(host=host.name, started=self._time)
            self._started[host.group.name] += 1
            self._waits.append(self._time - submission.time)
            self._alignment.add(host, decision)
            self._claims += explain_claims(
                pod, decision.placements, host.kubelet.machine, self._states.get(pod.uid, ())
            )
            devices = [placement.devices for placement in decision.placements]
            self._connections += container_connections(host.kubelet.machine, devices)
            if submission.duration is not None:
                self._push(self._time + submission.duration, _ENDS, uid=pod.uid)
        self._done += len(unit.pods)
        self._meter.waiting -= len(unit.pods)

    def _admit(self, placement: _Placement) -> Decision:
        pod, pod_class, host = placement
        decision = decide_steered(host.kubelet, pod, self._steered.pop(pod.uid, ANYWHERE), self._chooser)
        if self._recorder:
            self._recorder(self._time, host.name, pod, decision)
        if decision.rejection is not None:
            self._rejections[decision.rejection.reason] += 1
            self._rejected[host.group.name] += 1
            self._meter.rejections += 1
            host.kubelet.leave_residue(decision)
            self._release_claims(pod.uid, host)
        else:
            host.kubelet.apply(decision)
            self._running[pod.uid] = placement
            self._meter.add(pod_class.request)
        self._scheduler.decided(pod, host, decision)
        return decision

    def _retry(self, unit: PodUnit, rejected_uids: Collection[str]) -> None:
        """Create a unit again whose pods *rejected_uids* kubelets have rejected."""
        failed = unit.attempt >= self._retries
        for submission in unit.pods:
            uid = submission.pod.uid
            run = self._runs[uid]
            self._runs[uid] = run._replace(rejections=run.rejections + (uid in rejected_uids), failed=failed)
        if failed:
            self._done += len(unit.pods)
            return
        delay = min(FIRST_BACKOFF * 2**unit.attempt, MAX_BACKOFF)
        self._push(self._time + delay, _STARTS, replace(unit, attempt=unit.attempt + 1))

    def _end(self, uid: str) -> SimulatedHost:
        pod, pod_class, host = self._running.pop(uid)
        host.kubelet.release(uid)
        self._release_claims(uid, host)
        if self._recorder:
            self._recorder(self._time, host.name, pod, None)
        self._scheduler.ended(pod, host)
        self._meter.add(pod_class.request, by=-1)
        return host

    def _result(self, peak: PeakState) -> FleetResult:
        runs = self.runs
        gangs = {run.submission.gang for run in runs} - {""}
        incomplete = {run.submission.gang for run in runs if not run.host}
        pods = [submission.pod for submission in self._submissions]
        end = max(self._time, self._last_arrival)
        never_started = [end - run.submission.time for run in runs if not run.host]
        return FleetResult(
            strategy=self.strategy,
            hosts=len(self.hosts),
            pods=len(runs),
            started=sum(bool(run.host) for run in runs),
            failed=sum(run.failed for run in runs),
            pending=sum(not run.host and not run.failed for run in runs),
            rejections=dict(self._rejections.most_common()),
            rejected_pods=sum(bool(run.rejections) for run in runs),
            gangs=len(gangs),
            started_gangs=len(gangs - incomplete),
            torn_gangs=self._torn_gangs,
            mispredictions=self._scheduler.mispredictions,
            waiting=summarize_waiting([*self._waits, *never_started]),
            use=self._meter.use(),
            stranded=measure_cluster(self.hosts, peak.ledgers, pods, time=peak.time),
            alignment=self._alignment.summary(),
            claims=ClaimCounts.of(self._claims),
            connections=ConnectionCounts.of(self._connections),
            groups=tuple(
                HostGroupUse(name=name, hosts=hosts, started=self._started[name], rejections=self._rejected[name])
                for name, hosts in [(group.name, len(group.host_names())) for group in self.groups]
            ),
            duration=end - self._start,
            timeline=tuple(self._meter.points),
            fitting_after_moves=count_gained_pods(peak, self._shape, self._submissions) if self._shape else {},
        )


def _with_unique_uids(submissions: Iterable[PodSubmission]) -> Iterator[PodSubmission]:
    """Yield *submissions*; a trace may use a uid again when its pod has departed, but here that pod may still wait."""
    counts: Counter[str] = Counter()
    for submission in submissions:
        uid = submission.pod.uid
        counts[uid] += 1
        if counts[uid] > 1:
            submission = replace(submission, pod=replace(submission.pod, uid=f"{uid} ({counts[uid]})"))  # noqa: PLW2901
        yield submission
