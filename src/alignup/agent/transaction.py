"""One change of the agent's state: pods come and go, device plugins list devices.

A transaction is pure. The queue makes its result durable and then current, or drops it, and nothing has happened.
"""

from collections.abc import Collection, Iterable
from copy import copy
from dataclasses import replace
from typing import Any

from alignup.agent import pending_admission
from alignup.agent.pending_admission import PendingAdmission, assume_no_preferences
from alignup.agent.state import (
    API_SOURCE,
    MAX_METADATA,
    MAX_TRIES,
    AdmissionResult,
    AdmissionStatus,
    AgentEvent,
    AgentState,
    Clock,
    EventKind,
    PodRecord,
    PodView,
    WaitingPods,
    check_uid,
    same_workload,
)
from alignup.align.decision import Decision
from alignup.align.devices.demanded_locality import locality_demands
from alignup.align.devices.ledger import DeviceLedger
from alignup.align.devices.provider import PreferenceAnswers
from alignup.align.errors import AlignError, PodError, Problem, ProviderError
from alignup.align.layered_map import with_item, without_item
from alignup.align.machine import Device
from alignup.align.workload import Pod
from alignup.documents.codec import build
from alignup.documents.pod_documents import PodGrants
from alignup.picture.text_format import pluralize
from alignup.web.responses import BusyError, NotReadyError

_NONE: PreferenceAnswers = {}


class Transaction:
    """A change of *state*, which stays as it is; without *admits_waiting*, waiting pods are not retried."""

    def __init__(self, state: AgentState, clock: Clock, *, admits_waiting: bool = True) -> None:
        self._before = state
        self._clock = clock
        self._host = copy(state.host)  # its ledger is a value, so the copy can change independently
        self._admitted = state.admitted
        self._waiting = state.waiting
        self._pending = dict(state.pending)
        self._backing_off = set(state.backing_off)
        self._admits_waiting = admits_waiting
        self._changed = False
        self.durable = False  #: whether a change must survive a crash
        self.always = False  #: whether it is applied even if the state cannot be written
        self.after_events = False  #: whether the caller waits until all earlier events are dispatched
        self.events: list[AgentEvent] = []
        self.started: list[PendingAdmission] = []  #: waiting pods whose device plugins must be called now

    def state(self) -> AgentState:
        """Return the new state; the same object if nothing has changed."""
        if not self._changed:
            return self._before
        return replace(
            self._before,
            host=self._host,
            admitted=self._admitted,
            waiting=self._waiting,
            pending=self._pending,
            backing_off=frozenset(self._backing_off),
        )

    def decide(
        self, pod: Pod, *, source: str = API_SOURCE, answers: PreferenceAnswers = _NONE, checked: bool = False
    ) -> PendingAdmission:
        """Decide on a pod; *checked*: it was decided on before, so that its uid and size are known to be valid.

        Raise ``PodError`` for a pod that could never be released, carries too much to be stored with many others, or
        has the uid of another pod.
        """
        if not checked:
            check_uid(pod.uid)
            self._check_known(pod)
            size = sum(len(name) + len(value) for part in (pod.labels, pod.annotations) for name, value in part.items())
            if size > MAX_METADATA:
                message = f"labels and annotations must have at most {MAX_METADATA} characters together, not {size}"
                raise PodError([Problem("metadata.annotations", message)])
            locality_demands(pod)  # raises if they are invalid
        start = self._clock.monotonic()
        decision = self._host.decide(pod, answers)
        requests = decision.preference_requests
        if requests:
            decision = assume_no_preferences(self._host, pod, decision, answers)
        if decision.admitted and (self._before.wait_enabled or source != API_SOURCE):
            missing_resources = tuple(pending_admission.unknown_resources(self._host, pod))
            if missing_resources:
                decision = pending_admission.rejected_for_missing_devices(decision, missing_resources)
        if requests:
            served_resources = self._before.plugins if decision.admitted else ()
            requests = tuple(request for request in requests if request.resource in served_resources)
        seconds = self._clock.monotonic() - start
        return PendingAdmission(
            pod=pod, source=source, decision=decision, preference_requests=requests, seconds=seconds
        )

    def admit(self, pod: Pod, *, source: str = API_SOURCE) -> AdmissionResult | PendingAdmission:
        """Admit a pod, reject it, or let it wait; a known pod stays as it is.

        If device plugins must be called first, the pod holds its resources and is pending. Raise ``PodError`` if
        another pod has the same uid, ``BusyError`` if the wait queue is full.
        """
        if record := self._check_known(pod):
            return self._admit_again(pod, record, source=source)
        admission = self.decide(pod, source=source)
        if self._waiting and (blocking_pod := self._blocking_pod(admission, self._waiting.uids())):
            decision = pending_admission.waiting_behind(admission.decision, blocking_pod)
            return self._record(replace(admission, decision=decision), AdmissionStatus.WAITING)
        if admission.decision.admitted:
            if self._before.plugins and (reservation := self._reserve(admission)):
                return reservation if source == API_SOURCE else self._wait_for_plugins(reservation)
            self._host.apply(admission.decision)
            return self._record(admission, AdmissionStatus.ADMITTED)
        return self._wait_or_reject(admission)

    def apply_preferences(
        self, reservation: PendingAdmission, answers: PreferenceAnswers, *, last: bool = False
    ) -> AdmissionResult | PendingAdmission:
        """Place a pod again with the plugins' *answers*; after the *last* round, plugins are not asked again."""
        if not self._unreserve(reservation):
            return AdmissionResult(pending_admission.released_while_pending(reservation.decision), None)
        admission = self.decide(reservation.pod, source=reservation.source, answers=answers, checked=True)
        if not admission.decision.admitted:
            return self._reject_pending(reservation, admission.decision)
        requests, seconds = () if last else admission.preference_requests, reservation.seconds + admission.seconds
        again = self._reserve(
            replace(admission, preference_requests=requests, seconds=seconds, ticket=reservation.ticket)
        )
        if again is None:
            raise AssertionError("a pod whose plugins stated preferences has devices of these plugins")
        return again

    def commit(self, reservation: PendingAdmission, grants: PodGrants) -> AdmissionResult:
        admission = self._pending.get(reservation.pod.uid)
        if admission is None or admission.ticket is not reservation.ticket:
            return AdmissionResult(pending_admission.released_while_pending(reservation.decision), None)
        del self._pending[reservation.pod.uid]
        return self._record(reservation, AdmissionStatus.ADMITTED, grants=grants)

    def fail(self, admission: PendingAdmission, error: ProviderError) -> AdmissionResult:
        decision = pending_admission.rejected_by_plugin(admission.decision, error)
        if not self._unreserve(admission):
            return AdmissionResult(pending_admission.released_while_pending(decision), None)
        return self._reject_pending(admission, decision)

    def undo(self, admission: PendingAdmission) -> None:
        self.always = True
        if self._unreserve(admission) and admission.pod.uid in self._waiting:
            self._backing_off.add(admission.pod.uid)

    def end_backoff(self, uid: str) -> bool:
        self._changed = self._changed or uid in self._backing_off
        self._backing_off.discard(uid)
        self.retry_waiting()
        return uid in self._waiting

    def flush_events(self) -> None:
        """Change nothing; the caller waits until all earlier events are dispatched."""
        self.after_events = True

    def release(self, uid: str, *, retry: bool = True) -> PodView | None:
        """Remove a pod and retry the waiting pods; ``None``: unknown uid."""
        view = self.state().pod_view(uid)
        if admission := self._pending.get(uid):
            self._unreserve(admission)
            decision, now = pending_admission.waiting_for_devices(admission), self._clock.now()
            record = PodRecord(pod=admission.pod, since=now, source=admission.source, decision=decision)
            view = view or build(PodView, record, status=AdmissionStatus.WAITING, position=None)
        if view is None:
            return None
        if uid in self._admitted:
            self._host.release(uid)
            self._admitted = without_item(self._admitted, uid)
        else:
            self._change_waiting().remove(uid)
            self._backing_off.discard(uid)
        self._changed = True
        self.durable = True
        self._emit(EventKind.RELEASED, view)
        if retry:
            self.retry_waiting()
        return view

    def replace_pods(
        self, removed_uids: Iterable[str], new_pods: Iterable[tuple[Pod, str]]
    ) -> tuple[AdmissionResult | Exception, ...]:
        """Remove pods of manifests and add others, with their sources, before any waiting pod is retried.

        Return one result for each added pod; an error does not affect the others.
        """
        views = [self.release(uid, retry=False) for uid in removed_uids]
        results: list[AdmissionResult | Exception] = []
        for pod, source in new_pods:
            try:
                result = self.admit(pod, source=source)
                results.append(
                    AdmissionResult(result.decision, None) if isinstance(result, PendingAdmission) else result
                )
            except (AlignError, BusyError, NotReadyError) as error:
                results.append(error)
        if any(views):
            self.retry_waiting()
        return tuple(results)

    def set_devices(self, resource: str, devices: Iterable[Device], *, preferred_allocation: bool = False) -> None:
        devices, idle = tuple(devices), self._before.idle_ledger
        healthy = idle.devices.announce(resource, (replace(device, healthy=True) for device in devices))
        idle, plugins = replace(idle, devices=healthy), self._before.plugins | {resource}
        self._before = replace(self._before, idle_ledger=idle, plugins=plugins)
        ledger = self._host.ledger.devices
        self._update_devices(resource, ledger.announce(resource, devices, preferred_allocation=preferred_allocation))
        count = sum(device.healthy for device in devices)
        self._emit(EventKind.ANNOUNCED, detail=f"{resource}: {count} of {pluralize(len(devices), 'device')} healthy")
        self.retry_waiting()

    def plugin_stopped(self, resource: str, *, gone: bool = False) -> None:
        """Stop allocating the devices of a plugin, and remove them if the plugin is *gone*; pods keep their devices."""
        devices = self._host.ledger.devices
        if resource in devices.inventories:
            self._update_devices(resource, devices.give_up(resource) if gone else devices.stop(resource))
        change = "disconnected; its devices are not allocated until it reconnects"
        if gone:
            change = "did not reconnect in time; the resource is removed"
        self._emit(EventKind.GONE if gone else EventKind.STOPPED, detail=f"{resource}: the device plugin {change}")

    def retry_waiting(self) -> None:
        """Admit the waiting pods that fit now, in order; behind a pod that must not be overtaken, try only a few."""
        if not self._admits_waiting:
            return
        misfits: set[str] = set()  # request keys that do not fit the current ledger
        passed_uids: list[str] = []
        is_blocked, tries = False, MAX_TRIES
        for record in self._waiting:
            uid = record.pod.uid
            if uid in self._pending or uid in self._backing_off:
                continue
            new = record.pod.request_key not in misfits
            if new and self._retry(record, passed_uids if is_blocked else ()):
                misfits.clear()
                is_blocked = is_blocked or any(map(self._blocks, passed_uids))
            else:
                misfits.add(record.pod.request_key)
                passed_uids.append(uid)
                is_blocked = is_blocked or self._blocks(uid)
            if is_blocked and new and not (tries := tries - 1):
                break

    def _retry(self, record: PodRecord, ahead: Collection[str]) -> bool:
        """Return whether a waiting pod fits now and may overtake those *ahead*; it is then admitted or pending."""
        try:
            admission = self.decide(record.pod, source=record.source, checked=True)
        except (AlignError, NotReadyError):  # must not keep other pods waiting
            return False
        decision = admission.decision
        if decision.admitted and ahead and (blocking_pod := self._blocking_pod(admission, ahead)):
            decision = pending_admission.waiting_behind(decision, blocking_pod)
        if not decision.admitted:
            self._change_waiting().update(record.with_decision(decision))
            return False
        if reservation := self._reserve(admission):
            self._change_waiting().update(record.with_decision(pending_admission.waiting_for_devices(reservation)))
            self.started.append(reservation)
            return True
        self._host.apply(admission.decision)
        self._record(admission, AdmissionStatus.ADMITTED)
        return True

    def _blocking_pod(self, admission: PendingAdmission, ahead: Collection[str]) -> Pod | None:
        resources = {request.resource for request in admission.preference_requests}
        return self._waiting.blocking_pod(self._host, admission.decision, filter(self._blocks, ahead), resources)

    def _blocks(self, uid: str) -> bool:
        """Whether a waiting pod must not be overtaken; a pod that waits for a plugin blocks no other."""
        record = self._waiting.get(uid) if self._waiting.is_blocking(uid) else None
        if record is None or uid in self._pending or uid in self._backing_off:
            return False
        return not pending_admission.lacks_healthy_devices(self._host, record.pod)

    def _change_waiting(self) -> WaitingPods:
        """Return the wait queue to change it; the wait queue of the state before stays as it is."""
        if self._waiting is self._before.waiting:
            self._waiting = self._waiting.copy()
        self._changed = True
        return self._waiting

    def _emit(self, kind: EventKind, about: PendingAdmission | PodView | None = None, *, detail: str = "") -> None:
        fields: dict[str, Any] = {} if about is None else {"pod": about.pod, "source": about.source}
        if isinstance(about, PendingAdmission):
            fields |= {"decision": about.decision, "seconds": about.seconds}
        self.events.append(AgentEvent(kind=kind, time=self._clock.now(), detail=detail, **fields))

    def _check_known(self, pod: Pod) -> PodRecord | PendingAdmission | None:
        """Return the pod with the same uid; raise ``PodError`` if it has other requests."""
        record = self._admitted.get(pod.uid) or self._waiting.get(pod.uid) or self._pending.get(pod.uid)
        if record and not same_workload(pod, record.pod):
            name = f"{record.pod.namespace}/{record.pod.name}"
            message = f"is the uid of pod {name}, which has other requests; release that pod first"
            raise PodError([Problem("metadata.uid", message)])
        return record

    def _admit_again(self, pod: Pod, record: PodRecord | PendingAdmission, *, source: str) -> AdmissionResult:
        if isinstance(record, PendingAdmission):
            raise NotReadyError(f"the devices of pod {record.pod.namespace}/{record.pod.name} are being prepared")
        decision = record.decision
        if pod.uid in self._admitted:
            decision = self._host.decide(record.pod)
            self._emit(EventKind.KEPT, PendingAdmission(pod=record.pod, source=source, decision=decision))
        return AdmissionResult(decision, self.state().pod_view(pod.uid))

    def _reserve(self, admission: PendingAdmission) -> PendingAdmission | None:
        """Make an admitted pod pending if plugins must allocate its devices; ``None`` if not."""
        requests = pending_admission.device_requests(admission.decision, admission.pod, served=self._before.plugins)
        if not requests:
            return None
        self._host.apply(admission.decision)
        reservation = replace(admission, device_requests=requests, ticket=admission.ticket or object())
        self._pending[admission.pod.uid] = reservation
        self._changed = True
        return reservation

    def _unreserve(self, reservation: PendingAdmission) -> bool:
        """Release the resources of a pending pod; return whether it still held them."""
        admission = self._pending.get(reservation.pod.uid)
        if admission is None or admission.ticket is not reservation.ticket:
            return False
        self._host.release(reservation.pod.uid)
        del self._pending[reservation.pod.uid]
        self._changed = True
        return True

    def _wait_for_plugins(self, reservation: PendingAdmission) -> AdmissionResult:
        try:
            admission = replace(reservation, decision=pending_admission.waiting_for_devices(reservation))
            result = self._record(admission, AdmissionStatus.WAITING)
        except BusyError:
            self._unreserve(reservation)
            raise
        self.started.append(reservation)
        return result

    def _reject_pending(self, reservation: PendingAdmission, decision: Decision) -> AdmissionResult:
        """Reject a pending pod, or let it wait; waiting pods may get its resources."""
        uid, admission = reservation.pod.uid, replace(reservation, decision=decision)
        if (record := self._waiting.get(uid)) is not None:
            self._change_waiting().update(record.with_decision(decision))
            self._emit(EventKind.WAITING, admission)
        else:
            self._wait_or_reject(admission)
        if uid in self._waiting:
            self._backing_off.add(uid)
        self.retry_waiting()
        return AdmissionResult(decision, self.state().pod_view(uid))

    def _record(
        self, admission: PendingAdmission, status: AdmissionStatus, *, grants: PodGrants | None = None
    ) -> AdmissionResult:
        """Record a pod that waits, or one that is admitted and whose resources the ledger holds."""
        now, position = self._clock.now(), None
        decision = admission.decision.without_ledgers()
        record = PodRecord(
            pod=admission.pod, since=now, source=admission.source, decision=decision, grants=grants or {}
        )
        if status is AdmissionStatus.WAITING:
            self._change_waiting().add(record)
            position = len(self._waiting)
        else:
            uid = admission.pod.uid
            self._admitted = with_item(self._admitted, uid, record)
            if self._waiting:
                self._change_waiting().count_overtakes(uid)
                self._waiting.remove(uid)
        self._changed = True
        self.durable = True
        self._emit(EventKind(status), admission)
        return AdmissionResult(admission.decision, build(PodView, record, status=status, position=position))

    def _wait_or_reject(self, admission: PendingAdmission) -> AdmissionResult:
        may_wait = self._before.wait_enabled or admission.source != API_SOURCE
        if may_wait and self._before.fits_empty_host(admission.pod):
            return self._record(admission, AdmissionStatus.WAITING)
        self._emit(EventKind.REJECTED, admission)
        return AdmissionResult(admission.decision, None)

    def _update_devices(self, resource: str, devices: DeviceLedger) -> None:
        """Replace the devices. Only devices of pods must be durable: plugins list all devices again after a crash."""
        old_facts = pending_admission.persistent_facts(self._host, resource)
        self._host.ledger = replace(self._host.ledger, devices=devices)
        self._changed = True
        self.durable = self.durable or pending_admission.persistent_facts(self._host, resource) != old_facts
