"""How one job changes what stands: pods that come and go, devices that are announced, one after the other.

Everything here is pure: a :class:`Transaction` is the next standing in the making. Whoever holds it makes it durable first
and lets it count then, or drops it, and nothing has happened.
"""

from collections.abc import Iterable
from copy import copy
from dataclasses import replace

from alignup.agent import finished_pods as finishing
from alignup.agent import pending_admission as on_the_way
from alignup.agent.devices import device_state
from alignup.agent.finished_pods import FinishedPod
from alignup.agent.pending_admission import PendingAdmission, PodGrants, decide_without_preferences
from alignup.agent.pod_record import API_SOURCE, PodRecord, TerminationRequest, same_workload
from alignup.agent.state import EventKind, pod_view
from alignup.agent.transaction_base import TransactionBase
from alignup.align.decision import Decision
from alignup.align.devices import PreferenceAnswers, PreferenceRequest
from alignup.align.errors import AlignError, PodError, Problem, ProviderError
from alignup.align.machine import Device
from alignup.align.workload import Pod
from alignup.schema.api import AdmissionResult, AdmissionStatus, BusyError, NotReadyError, PodRunStatus, PodView


class Transaction(TransactionBase):
    """What a job can do with what stands."""

    def consider(
        self, pod: Pod, *, source: str = API_SOURCE, answers: PreferenceAnswers | None = None
    ) -> tuple[Decision, tuple[PreferenceRequest, ...], float]:
        """What would become of a pod now, what plugins should be asked first, and how many seconds it took to know."""
        start = self._clock.watch()
        decision, asks = decide_without_preferences(self._host, pod, answers or {})
        if (
            decision.admitted
            and self._waits(source)
            and (missing := tuple(device_state.unknown_resources(self._host, pod)))
        ):
            decision = on_the_way.rejected_for_missing_devices(decision, missing)
        asks = tuple(ask for ask in asks if ask.resource in self._before.plugins) if decision.admitted else ()
        return decision, asks, self._clock.watch() - start

    def admit(self, pod: Pod, *, source: str = API_SOURCE) -> AdmissionResult | PendingAdmission:
        """Admit a pod, refuse it, or let it wait; one that is known stays as it is.

        One whose devices have to be prepared has its place, and is on its way in. ``PodError`` when a pod of this uid
        is known that asks for something else, ``BusyError`` when too many wait.
        """
        if known := self._find(pod.uid):
            return self._again(pod, known, source=source)
        decision, asks, seconds = self.consider(pod, source=source)
        first = next((known for uid, known in self._line.pods.items() if self._holds_up(uid)), None)
        if decision.admitted and first is None:
            if pending := self._place(pod, decision, source=source, asks=asks, seconds=seconds):
                return pending if source == API_SOURCE else self._follow(pending)
            self._line = self._line.with_overtakes()
            return self._take(pod, decision, since=self._clock.now(), source=source, seconds=seconds)
        if decision.admitted and first is not None:
            decision = on_the_way.waiting_behind(decision, first.pod)
        elif not self._may_wait(pod, source):
            return self._refuse(pod, decision, source=source, seconds=seconds)
        return self._queue(pod, decision, source=source, seconds=seconds)

    def advise(
        self, pending: PendingAdmission, answers: PreferenceAnswers, *, last: bool = False
    ) -> AdmissionResult | PendingAdmission:
        """Place a pod again, now that plugins have given *answers*; after the *last* they are asked no more."""
        if not self._leave(pending):
            return AdmissionResult(on_the_way.released_while_pending(pending.decision), None)
        decision, asks, seconds = self.consider(pending.pod, source=pending.source, answers=answers)
        if not decision.admitted:
            return self._back(pending, decision)
        again = self._place(
            pending.pod,
            decision,
            source=pending.source,
            asks=() if last else asks,
            seconds=pending.seconds + seconds,
            ticket=pending.ticket,
        )
        if again is None:
            raise AssertionError("a pod whose plugins were asked has devices of theirs")
        return again

    def commit(self, pending: PendingAdmission, grants: PodGrants) -> AdmissionResult:
        """A pod's plugins have prepared all its devices: it is here from now on, with what they gave along."""
        uid = pending.pod.uid
        if not self._has_place(pending):
            return AdmissionResult(on_the_way.released_while_pending(pending.decision), None)
        del self._pending[uid]
        if uid in self._line.pods:
            self._line = self._line.with_overtakes(uid).without(uid)
        else:
            self._line = self._line.with_overtakes()
        return self._keep(
            pending.pod,
            pending.decision,
            since=self._clock.now(),
            source=pending.source,
            seconds=pending.seconds,
            grants=grants,
        )

    def fail(self, pending: PendingAdmission, error: ProviderError) -> AdmissionResult:
        """A pod's plugin said no: it gives its place back, and is refused, or waits, and rests for a while."""
        decision = on_the_way.rejected_by_plugin(pending.decision, error)
        if not self._leave(pending):
            return AdmissionResult(on_the_way.released_while_pending(decision), None)
        return self._back(pending, decision)

    def undo(self, pending: PendingAdmission) -> None:
        """A pod gives its place back; if it waits it goes on waiting, and rests for a while."""
        if self._leave(pending) and pending.pod.uid in self._line.pods:
            self._resting.add(pending.pod.uid)

    def wake(self, uid: str) -> bool:
        """One that rests is tried again, with everybody else; whether it still waits then."""
        self._changed = self._changed or uid in self._resting
        self._resting.discard(uid)
        self._retry()
        return uid in self._line.pods

    def release(self, uid: str) -> PodView | None:
        """A pod is gone, running or waiting; whoever waits is tried again. ``None`` when nobody knew it."""
        entry = self._remove(uid)
        if entry is not None:
            self._retry()
        return entry

    def end(self, uid: str, *, grace: float | None = None) -> PodView | None:
        """A pod that somebody runs is to end, in *grace* seconds or as it says itself; one that waits is released.

        Whoever runs it releases it when nothing of it is left. Told twice, it ends the earlier of the two.
        ``None`` when nobody knows it.
        """
        known = self._find(uid)
        if not isinstance(known, PodRecord) or uid in self._line.pods:
            return self.release(uid)
        ending = TerminationRequest(self._clock.now(), grace)
        if known.ending is None or ending.is_sooner_than(known.ending):
            self._note(replace(known, ending=ending))
            self._happened(EventKind.TERMINATING, pod=known.pod, source=known.source)
        return self._drafted().pod_view(uid)

    def finish(self, uid: str, run: PodRunStatus) -> None:
        """A pod has run to its end: it gives back all it has, and is remembered with how it ended."""
        known = self._held.pop(uid, None)
        if known is None:
            return
        self._host.release(uid)
        self._finished = finishing.add_finished(self._finished, FinishedPod(known=known, run=run))
        self._changed = self.durable = True
        detail = ": ".join(filter(None, (run.phase, run.reason, run.message)))
        self._happened(EventKind.FINISHED, pod=known.pod, source=known.source, detail=detail)
        self._retry()

    def started(self, uid: str, container: str) -> None:
        """A container of a pod that is here starts; init containers before it may give back what nobody reuses."""
        if uid not in self._held:
            return
        before = self._host.ledger
        self._host.start_container(uid, container)
        if self._host.ledger.by_provider() != before.by_provider():
            self._note(replace(self._held[uid]))
            self._retry()

    def exchange(self, gone: Iterable[str], come: Iterable[tuple[Pod, str]]) -> tuple[AdmissionResult | Exception, ...]:
        """Pods of manifests go and others come, with their sources, before anybody who waits is tried again.

        For each that comes what became of it; one that cannot be taken keeps nobody else from it.
        """
        left = [self._remove(uid) for uid in gone]
        answers = tuple(self._tried(pod, source) for pod, source in come)
        if any(left):
            self._retry()
        return answers

    def announce(self, resource: str, devices: Iterable[Device], *, preferred_allocation: bool = False) -> None:
        """A device plugin says which devices there are; whoever waits is tried again."""
        devices = tuple(devices)
        before = device_state.persistent_facts(self._host, resource)
        device_state.set_devices(self._host, resource, devices, preferred_allocation=preferred_allocation)
        idle = copy(self._host)
        idle.ledger = self._before.idle
        device_state.set_devices(idle, resource, (replace(device, healthy=True) for device in devices))
        self._before = replace(self._before, idle=idle.ledger, plugins=self._before.plugins | {resource})
        self._hardware_changed(resource, before)
        detail = f"{resource}: {sum(device.healthy for device in devices)} of {len(devices)} devices are healthy"
        self._happened(EventKind.ANNOUNCED, detail=detail)
        self._retry()

    def stop(self, resource: str) -> None:
        """A device plugin is gone: none of its devices can be given out until it comes back."""
        device_state.mark_stopped(self._host, resource)
        self._changed = True
        detail = f"{resource}: its device plugin is gone, and its devices are not given out until it is back"
        self._happened(EventKind.STOPPED, detail=detail)

    def give_up(self, resource: str) -> None:
        """A device plugin did not come back in time: its resource is known only as long as pods hold some of it."""
        before = device_state.persistent_facts(self._host, resource)
        device_state.remove_resource(self._host, resource)
        self._hardware_changed(resource, before)
        detail = f"{resource}: its device plugin did not come back in time, and it is given up"
        self._happened(EventKind.GONE, detail=detail)

    def try_waiting(self) -> None:
        """Try again whoever waits, as after a restart."""
        self._retry()

    def _again(self, pod: Pod, known: PodRecord | PendingAdmission, *, source: str) -> AdmissionResult:
        """What is said of a pod that is known."""
        if not same_workload(pod, known.pod):
            name = f"{known.pod.namespace}/{known.pod.name}"
            raise PodError(
                [Problem("metadata.uid", f"pod {name} has it and asks for something else; release it first")]
            )
        if isinstance(known, PendingAdmission):
            raise NotReadyError(f"the devices of pod {pod.namespace}/{pod.name} are being prepared already")
        runs = pod.uid in self._held
        decision = self._host.decide(known.pod) if runs else known.record.decision
        if runs:
            self._decided(EventKind.KEPT, known.pod, source=source, decision=decision)
        return AdmissionResult(decision, self._drafted().pod_view(pod.uid))

    def _tried(self, pod: Pod, source: str) -> AdmissionResult | Exception:
        try:
            admission = self.admit(pod, source=source)
        except (AlignError, BusyError, NotReadyError) as error:
            return error
        # Pods of manifests wait in line while their devices are prepared.
        return AdmissionResult(admission.decision, None) if isinstance(admission, PendingAdmission) else admission

    def _place(  # noqa: PLR0913 - what is known of a pod on its way in
        self,
        pod: Pod,
        decision: Decision,
        *,
        source: str,
        asks: tuple[PreferenceRequest, ...],
        seconds: float,
        ticket: object = None,
    ) -> PendingAdmission | None:
        """Give an admitted pod its place, if its plugins have to be asked; ``None``: they need not."""
        wants = device_state.device_requests(decision, pod, served=self._before.plugins)
        if not wants:
            return None
        self._host.apply(decision)
        pending = self._pending[pod.uid] = PendingAdmission(
            pod=pod,
            source=source,
            decision=decision,
            asks=asks,
            device_requests=wants,
            seconds=seconds,
            ticket=ticket or object(),
        )
        self._changed = True
        return pending

    def _follow(self, pending: PendingAdmission) -> AdmissionResult:
        """Let a pod that has a place wait for its plugins, and nobody wait for it."""
        try:
            admission = self._queue(
                pending.pod, on_the_way.waiting_for_devices(pending), source=pending.source, seconds=pending.seconds
            )
        except BusyError:
            self._leave(pending)
            raise
        self.begun.append(pending)
        return admission

    def _has_place(self, pending: PendingAdmission) -> bool:
        """Whether a pod is still on its way in; it may have been released meanwhile."""
        found = self._pending.get(pending.pod.uid)
        return found is not None and found.ticket is pending.ticket

    def _leave(self, pending: PendingAdmission) -> bool:
        """Take back a pod's place; whether it had one."""
        if not self._has_place(pending):
            return False
        self._host.release(pending.pod.uid)
        del self._pending[pending.pod.uid]
        self._changed = True
        return True

    def _back(self, pending: PendingAdmission, decision: Decision) -> AdmissionResult:
        """What becomes of a pod that had a place, and is refused now; others may have that place."""
        pod = pending.pod
        known = self._line.pods.get(pod.uid)
        if known is not None:
            self._line = self._line.updated(known.told(decision))
            self._decided(EventKind.WAITING, pod, source=pending.source, decision=decision, seconds=pending.seconds)
        elif self._may_wait(pod, pending.source):
            self._queue(pod, decision, source=pending.source, seconds=pending.seconds)
        else:
            self._refuse(pod, decision, source=pending.source, seconds=pending.seconds)
        if pod.uid in self._line.pods:
            self._resting.add(pod.uid)
        self._retry()
        return AdmissionResult(decision, self._drafted().pod_view(pod.uid))

    def _take(self, pod: Pod, decision: Decision, *, since: float, source: str, seconds: float) -> AdmissionResult:
        """Give the pod what was decided."""
        self._host.apply(decision)
        return self._keep(pod, decision, since=since, source=source, seconds=seconds)

    def _keep(  # noqa: PLR0913 - all that is known of a pod
        self,
        pod: Pod,
        decision: Decision,
        *,
        since: float,
        source: str,
        seconds: float,
        grants: PodGrants | None = None,
    ) -> AdmissionResult:
        """The pod is here from now on."""
        record = self._decided(EventKind.ADMITTED, pod, source=source, decision=decision, seconds=seconds)
        known = PodRecord(pod=pod, since=since, source=source, record=record, grants=grants or {})
        self._held[pod.uid] = known
        self._changed = self.durable = True
        return AdmissionResult(decision, pod_view(known, AdmissionStatus.ADMITTED))

    def _refuse(self, pod: Pod, decision: Decision, *, source: str, seconds: float) -> AdmissionResult:
        self._decided(EventKind.REJECTED, pod, source=source, decision=decision, seconds=seconds)
        return AdmissionResult(decision, None)

    def _queue(self, pod: Pod, decision: Decision, *, source: str, seconds: float) -> AdmissionResult:
        """Let the pod wait."""
        self._line.check_capacity()
        record = self._decided(EventKind.WAITING, pod, source=source, decision=decision, seconds=seconds)
        known = PodRecord(pod=pod, since=self._clock.now(), source=source, record=record)
        self._line = self._line.joined(known)
        self._changed = self.durable = True
        return AdmissionResult(decision, pod_view(known, AdmissionStatus.WAITING, position=len(self._line.pods)))

    def _remove(self, uid: str) -> PodView | None:
        """Forget a pod, and take back what it has."""
        entry = self._drafted().pod_view(uid)
        if pending := self._pending.get(uid):
            self._leave(pending)
            entry = entry or on_the_way.pending_pod_view(pending, since=self._clock.now())
        if entry is None:
            return None
        if uid in self._held:
            self._host.release(uid)
            del self._held[uid]
        elif uid in self._finished:
            del self._finished[uid]
        else:
            self._line = self._line.without(uid)
            self._resting.discard(uid)
        self._changed = self.durable = True
        self._happened(EventKind.RELEASED, pod=entry.pod, source=entry.source)
        return entry

    def _retry(self) -> None:
        """Admit of those who wait all that fit now, in their order."""
        hopeless: set[str] = set()  # shapes that do not fit the ledger as it is
        passed: list[str] = []
        for uid, known in self._line.pods.items():
            if uid in self._pending or uid in self._resting:
                continue
            if known.shape not in hopeless and self._retried(known):
                hopeless.clear()
                overtaken = passed
            else:
                hopeless.add(known.shape)
                passed.append(uid)
                overtaken = [uid]
            if any(map(self._holds_up, overtaken)):
                return

    def _retried(self, known: PodRecord) -> bool:
        """Whether one that waits fits now; then it is admitted, or on its way in."""
        pod, source = known.pod, known.source
        try:
            decision, asks, seconds = self.consider(pod, source=source)
        except (AlignError, NotReadyError):  # that one cannot be decided on must not keep others from anything
            return False
        if not decision.admitted:
            self._line = self._line.updated(known.told(decision))
            self._changed = True
            return False
        if pending := self._place(pod, decision, source=source, asks=asks, seconds=seconds):
            self._line = self._line.updated(known.told(on_the_way.waiting_for_devices(pending)))
            self.begun.append(pending)
            return True
        self._line = self._line.with_overtakes(pod.uid).without(pod.uid)
        self._take(pod, decision, since=self._clock.now(), source=source, seconds=seconds)
        return True

    def _holds_up(self, uid: str) -> bool:
        """Whether nobody behind one that waits may be admitted; whoever waits for a device plugin holds up nobody."""
        return (
            self._line.is_blocking(uid)
            and uid not in self._pending
            and uid not in self._resting
            and not device_state.lacks_healthy_devices(self._host, self._line.pods[uid].pod)
        )

    def _waits(self, source: str) -> bool:
        """Whether pods from there may wait."""
        return self._before.wait or source != API_SOURCE

    def _may_wait(self, pod: Pod, source: str) -> bool:
        """Whether a refused pod waits: it may, and it would fit if nothing else were here."""
        if not self._waits(source):
            return False
        alone = copy(self._host)
        alone.ledger = self._before.idle
        return decide_without_preferences(alone, pod, {})[0].admitted

    def _hardware_changed(self, resource: str, before: tuple[object, ...]) -> None:
        """What plugins say is said again after a crash: just what pods hold of it has to be written down."""
        self._changed = True
        self.durable = self.durable or device_state.persistent_facts(self._host, resource) != before
