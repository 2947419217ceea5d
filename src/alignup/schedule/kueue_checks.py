"""The controller of Kueue's admission checks: whether all pods of a workload fit together, before Kueue starts it.

A workload that has its quota is decided as one gang, on the nodes that its flavors and its topologyAssignment allow,
beside the workloads that have passed the check and whose pods are not all bound yet. Everything the controller needs to
know is in the status of the workloads, so another leader continues where this one ends.

Kueue's contract: it waits for Ready, releases the quota on Retry and tries again after ``requeueAfterSeconds``, and
deactivates the workload on Rejected. An admitted workload is evicted by Retry, so the check of one is never changed.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from operator import itemgetter

import msgspec
import structlog

from alignup.align.errors import OWN_LIMIT, ParseError, PodError
from alignup.align.host import check_pod
from alignup.align.workload import Pod
from alignup.align.workload.validation import apply_defaults
from alignup.documents.codec import seconds_of, timestamp
from alignup.kubernetes.api import ApiClient
from alignup.kubernetes.api.client import EventType
from alignup.kubernetes.api.errors import ApiError, ConflictError
from alignup.kubernetes.api.informer import Change, Informer
from alignup.kubernetes.api.known_pods import check_container_count, readable_pod
from alignup.kubernetes.api.kueue_resources import (
    ADMISSION_CHECKS,
    RESOURCE_FLAVORS,
    WORKLOAD_ANNOTATION,
    WORKLOADS,
    AdmissionCheck,
    CheckState,
    CheckStatus,
    KueueWorkload,
    PodSet,
    PodSetAssignment,
)
from alignup.kubernetes.api.objects import ApiPod, ApiPodSpec, ObjectMeta
from alignup.picture.text_format import pluralize
from alignup.placement.gang import GangAnswer
from alignup.placement.shortage import describe_shortage
from alignup.placement.verdict import PASSING_REASONS
from alignup.schedule.live_cluster import LiveCluster
from alignup.schedule.metrics import ScheduleMetrics
from alignup.schedule.step_guard import GuardedStep, ServiceStep, StepFailure

CONTROLLER = "alignup.dev/admission-check"
MANAGER = "alignup-admission-check"
POD_SET_LABEL = "kueue.x-k8s.io/podset"
MAX_PODS = 2_000  #: of a workload
STARTING_SECONDS = 120.0  #: for which a workload that passed the check counts as about to start
FIRST_RETRY, LONGEST_RETRY = 15, 300  #: seconds until Kueue tries a workload again; twice as many each time
PASS_SECONDS = 0.5  #: between two passes over the workloads
ABSENT_SECONDS = 60.0  #: between attempts to list resources that the API server does not have
_NAMED = 3  #: workloads in a message
_OPEN = frozenset({CheckState.PENDING, CheckState.READY})  #: states that can still be changed

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class CheckAnswer:
    state: CheckState
    message: str
    requeue_after: int | None = None  #: seconds, for Retry


@dataclass(frozen=True, slots=True)
class _Member:
    pod_set: str
    pod: Pod
    nodes: Collection[str]  #: that a scheduler considers


class AdmissionChecks:
    """The admission checks whose controller this process is, while it leads."""

    def __init__(
        self,
        client: ApiClient,
        live: LiveCluster,
        metrics: ScheduleMetrics,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._live = live
        self._metrics = metrics
        self._now = now
        self.checks = Informer(client, ADMISSION_CHECKS, longest_retry=ABSENT_SECONDS)
        self.workloads = Informer(client, WORKLOADS, longest_retry=ABSENT_SECONDS)
        self.flavors = Informer(client, RESOURCE_FLAVORS, longest_retry=ABSENT_SECONDS)
        self._changed = asyncio.Event()
        self._bound: defaultdict[tuple[str, str], dict[str, str]] = defaultdict(dict)  #: workload → uid → pod set
        #: uid → the version that was read, and what was written, until the watch shows it
        self._written: dict[str, tuple[str, KueueWorkload]] = {}
        for informer in (self.checks, self.workloads, self.flavors):
            informer.subscribe(lambda _change: self._changed.set())
        live.pods.subscribe(self._pod_changed)
        live.on_change(lambda _nodes: self._changed.set())

    async def follow(self) -> None:
        """Follow Kueue's objects until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for informer in (self.checks, self.workloads, self.flavors):
                tasks.create_task(informer.run())

    async def run(self) -> None:
        """Answer checks until cancelled."""
        for informer in (self.checks, self.workloads, self.flavors):
            await informer.wait_synced()
        self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not self._live.problems:
                for check in self._own_checks():
                    with self._guarded(f"check {check.metadata.name}"):
                        await self._activate(check)
                for workload in self._waiting():
                    name = workload.metadata.full_name
                    if not self._live.guard.may_try(ServiceStep.CHECK, name):
                        continue
                    with self._guarded(name):
                        await self._check(workload)
                    await asyncio.sleep(0)  # schedulers wait for answers
                self._forget_seen()
            await self._client.timing.sleep(PASS_SECONDS)

    def _guarded(self, name: str) -> GuardedStep:
        """Let a step fail for one object alone, and try it again later."""
        return self._live.guard.guarded(ServiceStep.CHECK, name, undo=self._check_later)

    def _check_later(self, failure: StepFailure) -> None:
        asyncio.get_running_loop().call_later(failure.seconds, self._changed.set)

    def _pod_changed(self, change: Change[ApiPod]) -> None:
        metadata = change.object.metadata
        name = metadata.annotations.get(WORKLOAD_ANNOTATION)
        if not name:
            return
        pods = self._bound[metadata.namespace, name]
        if change.object.spec.node_name and change.type is not EventType.DELETED:
            pods[metadata.uid] = metadata.labels.get(POD_SET_LABEL, "")
        else:
            pods.pop(metadata.uid, None)
        if not pods:
            del self._bound[metadata.namespace, name]

    # Which workloads

    def _own_checks(self) -> list[AdmissionCheck]:
        return [check for check in self.checks.objects.values() if check.spec.controller_name == CONTROLLER]

    def _statuses(self, workload: KueueWorkload) -> list[CheckStatus]:
        names = {check.metadata.name for check in self._own_checks()}
        return [status for status in workload.status.admission_checks if status.name in names]

    def _latest(self) -> Iterator[KueueWorkload]:
        """Yield all workloads as they were read or written last."""
        for workload in self.workloads.objects.values():
            metadata = workload.metadata
            version, written_workload = self._written.get(metadata.uid, ("", workload))
            yield written_workload if version == metadata.resource_version else workload

    def _forget_seen(self) -> None:
        """Forget what was written once the watch shows it, or something later."""
        objects = self.workloads.objects.values()
        versions = {workload.metadata.uid: workload.metadata.resource_version for workload in objects}
        self._written = {uid: entry for uid, entry in self._written.items() if versions.get(uid) == entry[0]}

    def _waiting(self) -> list[KueueWorkload]:
        """Return the workloads that have their quota and are not admitted yet, nor about to be evicted, in order."""
        waiting_workloads = []
        for workload in self._latest():
            name = f"{workload.metadata.full_name}, which may wait"
            if not self._live.guard.may_try(ServiceStep.CHECK, name):
                continue
            with self._guarded(name):
                if _may_start(workload) and not workload.has_condition("Admitted"):
                    statuses = self._statuses(workload)
                    if statuses and all(status.state in _OPEN for status in statuses):
                        waiting_workloads.append((_waiting_order(workload), workload))
        return [workload for _, workload in sorted(waiting_workloads, key=itemgetter(0))]

    def _starting(self, but: KueueWorkload) -> list[KueueWorkload]:
        """Return the other workloads that passed the check and whose pods may not be bound yet, the first first."""
        passed_checks = []
        for workload in self._latest():
            name = f"{workload.metadata.full_name}, which may start"
            if workload.metadata.uid == but.metadata.uid or not self._live.guard.may_try(ServiceStep.CHECK, name):
                continue
            with self._guarded(name):
                if not _may_start(workload):
                    continue
                ready = [status for status in self._statuses(workload) if status.state == CheckState.READY]
                times = [seconds_of(status.last_transition_time) for status in ready]
                if times and self._now() - max(times) < STARTING_SECONDS and not workload.has_condition("PodsReady"):
                    passed_checks.append((min(times), workload.metadata.full_name, workload))
        return [workload for *_, workload in sorted(passed_checks, key=lambda entry: entry[:2])]

    # Answers

    def answer(self, workload: KueueWorkload) -> CheckAnswer:
        """Decide on all pods of *workload* together."""
        try:
            members = self._members(workload)
        except (PodError, ParseError) as error:
            return CheckAnswer(CheckState.REJECTED, f"alignup cannot decide on the workload: {error}")
        others = self._about_to_start(workload)
        gang = self._place([*chain.from_iterable(others.values()), *members])
        alone = self._place(members) if others and not gang.fits else gang
        claims = ", without the devices of claims" if any(member.pod.uses_claims for member in members) else ""
        if alone.fits:
            hosts = alone.hosts
            nodes = {hosts[member.pod.uid] for member in members}
            message = f"its {_show_fit(len(members), len(nodes))}{claims}"
            if gang.fits:
                return CheckAnswer(CheckState.READY, message)
            more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
            names = ", ".join(islice(others, _NAMED))
            message += f", but not beside the pods of {names}{more}, which are about to start"
        else:
            gang = alone
            message = f"{len(gang.bindings)} of {len(members)} pods fit together{claims}"
        verdicts = gang.verdicts[gang.rest[-1].uid]  # the pods of others come first
        passing_reasons = Counter(verdict.reason for verdict in verdicts.values() if verdict.reason in PASSING_REASONS)
        if passing_reasons:
            reason, count = passing_reasons.most_common(1)[0]
            return CheckAnswer(
                CheckState.PENDING, f"{message}; {reason} ({count} of {pluralize(len(verdicts), 'node')})"
            )
        message += f"; {describe_shortage(self._live.cluster, verdicts)}"
        if not gang.proved:
            message += f"; no more were found within {gang.steps} steps"
        retries = max((status.retry_count for status in self._statuses(workload)), default=0)
        return CheckAnswer(CheckState.RETRY, message, min(FIRST_RETRY << min(retries, 8), LONGEST_RETRY))

    def _about_to_start(self, but: KueueWorkload) -> dict[str, list[_Member]]:
        """Return the pods that count beside a workload, by their workload; without pods that do not fit anyway."""
        others: dict[str, list[_Member]] = {}
        for other in self._starting(but):
            with self._live.guard.guarded(ServiceStep.CHECK, f"{other.metadata.full_name}, which starts"):
                others[other.metadata.full_name] = self._unbound(other)
        hosts = self._place(list(chain.from_iterable(others.values()))).hosts
        members_by_name = {
            name: [member for member in pods if member.pod.uid in hosts] for name, pods in others.items()
        }
        return {name: members for name, members in members_by_name.items() if members}

    def _place(self, members: Sequence[_Member]) -> GangAnswer:
        nodes = {member.pod.uid: member.nodes for member in members}
        return self._live.cluster.feasible_gang([member.pod for member in members], eligible=lambda pod: nodes[pod.uid])

    def _members(self, workload: KueueWorkload) -> list[_Member]:
        """Return all pods of *workload*; ``PodError`` or ``ParseError`` if they cannot be decided on."""
        admission = workload.status.admission
        assignments = {assignment.name: assignment for assignment in admission.pod_set_assignments} if admission else {}
        sizes = {pod_set.name: _size(pod_set, assignments.get(pod_set.name)) for pod_set in workload.spec.pod_sets}
        if (total := sum(sizes.values())) > MAX_PODS:
            raise ParseError(f"it has {total} pods, and at most {MAX_PODS} are decided together {OWN_LIMIT}")
        members = []
        for pod_set in workload.spec.pod_sets:
            pod, name = self._read(workload, pod_set), pod_set.name
            places = self._places(pod_set, assignments.get(name), sizes[name])
            for number, nodes in enumerate(places):
                uid = f"{workload.metadata.uid}/{name}/{number}"
                members.append(_Member(name, replace(pod, uid=uid, name=f"{pod.name}-{number}"), nodes))
        return members

    def _read(self, workload: KueueWorkload, pod_set: PodSet) -> Pod:
        template, metadata = pod_set.template, workload.metadata
        check_container_count(len(template.spec.containers) + len(template.spec.init_containers))
        name = f"{metadata.name}-{pod_set.name}"
        labels, annotations = template.metadata.labels, template.metadata.annotations
        meta = ObjectMeta(name=name, namespace=metadata.namespace, labels=labels, annotations=annotations)
        spec = msgspec.structs.replace(template.spec, node_name="")
        pod = apply_defaults(readable_pod(ApiPod(metadata=meta, spec=spec)))  # a template has no defaults yet
        pod = self._live.claims.objects.with_class_resources(pod)
        check_pod(replace(pod, uid=metadata.uid))
        return pod

    def _places(self, pod_set: PodSet, assignment: PodSetAssignment | None, size: int) -> Iterator[Collection[str]]:
        """Yield the nodes that each pod of a pod set may use."""
        spec = self._with_flavors(pod_set.template.spec, assignment)
        excludes = self._live.node_filter.excludes
        nodes = [node.metadata for node in self._live.nodes.objects.values() if not excludes(node, spec)]
        topology, pods_left = assignment.topology_assignment if assignment else None, size
        if topology is not None:
            domains: dict[tuple[str | None, ...], list[str]] = {}
            for node in nodes:
                values = tuple([node.labels.get(level) for level in topology.levels])
                domains.setdefault(values, []).append(node.name)
            for labels, count in topology.domains():
                yield from [frozenset(domains.get(tuple(labels.values()), ()))] * min(count, pods_left)
                pods_left -= min(count, pods_left)
                if not pods_left:
                    return
        yield from [frozenset([node.name for node in nodes])] * pods_left

    def _with_flavors(self, spec: ApiPodSpec, assignment: PodSetAssignment | None) -> ApiPodSpec:
        """Return *spec* with what Kueue adds for the flavors of the pod set."""
        names = sorted(set(assignment.flavors.values())) if assignment else []
        flavors = [flavor for name in names if (flavor := self.flavors.get(name))]
        selector, tolerations = dict(spec.node_selector), list(spec.tolerations)
        for flavor in flavors:
            selector |= flavor.spec.node_labels
            tolerations += flavor.spec.tolerations
        return msgspec.structs.replace(spec, node_name="", node_selector=selector, tolerations=tuple(tolerations))

    def _unbound(self, workload: KueueWorkload) -> list[_Member]:
        """Return the pods of a workload that has passed the check and that are not bound yet."""
        metadata = workload.metadata
        bound_counts = Counter(self._bound.get((metadata.namespace, metadata.name), {}).values())
        unbound, members = [], list[_Member]()
        with suppress(PodError, ParseError):
            members = self._members(workload)  # unless it has changed since it passed: no reason to reject another
        for member in members:
            pod_set = member.pod_set if bound_counts[member.pod_set] else ""  # pods of older versions have no label
            if bound_counts[pod_set]:
                bound_counts[pod_set] -= 1
            else:
                unbound.append(member)
        return unbound

    # Writing

    async def _check(self, workload: KueueWorkload) -> None:
        answer, statuses = self.answer(workload), self._statuses(workload)
        pending = answer.state is CheckState.PENDING
        if any(status.state != answer.state or (pending and status.message != answer.message) for status in statuses):
            await self._write(workload, statuses, answer)

    async def _write(self, workload: KueueWorkload, statuses: Sequence[CheckStatus], answer: CheckAnswer) -> None:
        """Write all *statuses* of this controller: server-side apply removes statuses that are left out."""
        name, version = workload.metadata.full_name, workload.metadata.resource_version
        requeue = {} if answer.requeue_after is None else {"requeueAfterSeconds": answer.requeue_after}
        entries = [
            {
                "name": status.name,
                "state": answer.state,
                "message": answer.message,
                "lastTransitionTime": (status.state == answer.state and status.last_transition_time) or self._time(),
                **requeue,
            }
            for status in statuses
        ]
        # The version makes sure that the answer is about this admission, and not about a later one.
        metadata = {"uid": workload.metadata.uid, "resourceVersion": version}
        document = {"metadata": metadata, "status": {"admissionChecks": entries}}
        try:
            written_workload = await self._client.apply(
                WORKLOADS.of(workload, subresource="status"), document, manager=MANAGER
            )
        except ConflictError:  # the watch will show the later version
            return
        except ApiError as error:
            _log.warning("cannot write an admission check", workload=name, problem=str(error))
            return
        self._written[workload.metadata.uid] = (version, written_workload)
        self._metrics.admission_checks.labels(answer.state).inc()
        _log.info("admission check", workload=name, state=answer.state, message=answer.message)

    async def _activate(self, check: AdmissionCheck) -> None:
        """Say that this controller handles a check, without which Kueue uses no queue with it."""
        if any(condition.type == "Active" and condition.status == "True" for condition in check.status.conditions):
            return
        condition = {
            "type": "Active",
            "status": "True",
            "reason": "Active",
            "message": "alignup decides on the pods of workloads together",
            "lastTransitionTime": self._time(),
            "observedGeneration": check.metadata.generation,
        }
        document = {"metadata": {"uid": check.metadata.uid}, "status": {"conditions": [condition]}}
        try:
            await self._client.apply(ADMISSION_CHECKS.of(check, subresource="status"), document, manager=MANAGER)
        except ApiError as error:
            _log.warning("cannot activate an admission check", check=check.metadata.name, problem=str(error))

    def _time(self) -> str:
        return timestamp(self._now(), timespec="seconds")


def _may_start(workload: KueueWorkload) -> bool:
    return (
        workload.spec.active
        and workload.status.admission is not None
        and workload.has_condition("QuotaReserved")
        and not workload.has_condition("Finished")
        and workload.metadata.deletion_timestamp is None
    )


def _waiting_order(workload: KueueWorkload) -> tuple[int, str, str]:
    """Return a sort key: the highest priority first, then the oldest."""
    metadata = workload.metadata
    return (-(workload.spec.priority or 0), metadata.creation_timestamp or "", metadata.full_name)


def _show_fit(pods: int, hosts: int) -> str:
    together = "fits" if pods == 1 else "fit together"
    return f"{pluralize(pods, 'pod')} {together} on {pluralize(hosts, 'node')}"


def _size(pod_set: PodSet, assignment: PodSetAssignment | None) -> int:
    return pod_set.count if assignment is None or assignment.count is None else assignment.count
