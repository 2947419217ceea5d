"""One change of the agent's state: pods come and go, device plugins list devices.

A transaction is pure. The queue makes its result durable and then current, or drops it, and nothing has happened.
"""

from collections.abc import Iterable
from copy import copy
from dataclasses import replace

from alignup.agent import pending_admission
from alignup.agent.devices import device_state
from alignup.agent.pending_admission import DecidedPod, PendingAdmission, assume_no_preferences, pending_pod_view
from alignup.agent.pod_record import API_SOURCE, FinishedPod, PodRecord, TerminationRequest, same_workload
from alignup.agent.state import AgentEvent, AgentState, Clock, EventKind, StateDraft, add_finished, pod_view
from alignup.align.decision import Decision
from alignup.align.devices import PreferenceAnswers
from alignup.align.errors import AlignError, PodError, Problem, ProviderError
from alignup.align.machine import Device
from alignup.align.workload import Pod
from alignup.schema.api import AdmissionResult, AdmissionStatus, BusyError, NotReadyError, PodView
from alignup.schema.run_status import PodGrants, PodRunStatus


class Transaction:
    def __init__(self, state: AgentState, clock: Clock) -> None:
        self._before = state
        self._clock = clock
        self._next = StateDraft(state)
        self._changed = False
        self.durable = False  #: whether a change must survive a crash
        self.events: list[AgentEvent] = []
        self.started: list[PendingAdmission] = []  #: waiting pods whose device plugins must be called now

    def state(self) -> AgentState:
        """Return the new state; the same object if nothing has changed."""
        return self._next.freeze(self._before) if self._changed else self._before

    def decide(self, pod: Pod, *, source: str = API_SOURCE, answers: PreferenceAnswers | None = None) -> DecidedPod:
        """Decide on a pod without changing anything."""
        start = self._clock.monotonic()
        decision = self._next.host.decide(pod, answers or {})
        requests = decision.preference_requests
        if requests:
            decision = assume_no_preferences(self._next.host, pod, decision, answers or {})
        if decision.admitted and (self._before.wait_enabled or source != API_SOURCE):
            missing = tuple(device_state.unknown_resources(self._next.host, pod))
            if missing:
                decision = pending_admission.rejected_for_missing_devices(decision, missing)
        plugins = self._before.plugins
        requests = tuple(one for one in requests if one.resource in plugins) if decision.admitted else ()
        return DecidedPod(pod, source, decision, requests, self._clock.monotonic() - start)

    def admit(self, pod: Pod, *, source: str = API_SOURCE) -> AdmissionResult | PendingAdmission:
        """Admit a pod, reject it, or let it wait; a known pod stays as it is.

        If device plugins must be called first, the pod holds its resources and is pending. Raise ``PodError`` if
        another pod has the same uid, ``BusyError`` if the wait queue is full.
        """
        if known := self._next.find(pod.uid):
            return self._admit_again(pod, known, source=source)
        decided = self.decide(pod, source=source)
        blocking = next((one for uid, one in self._next.waiting.pods.items() if self._blocks(uid)), None)
        if decided.decision.admitted and blocking is None:
            if self._before.plugins and (pending := self._reserve(decided)):
                return pending if source == API_SOURCE else self._wait_for_plugins(pending)
            if self._next.waiting.pods:
                self._next.waiting = self._next.waiting.with_overtakes()
            self._next.host.apply(decided.decision)
            return self._admit(decided)
        if blocking is not None and decided.decision.admitted:
            return self._wait(
                replace(decided, decision=pending_admission.waiting_behind(decided.decision, blocking.pod))
            )
        return self._wait(decided) if self._may_wait(pod, source) else self._reject(decided)

    def apply_preferences(
        self, pending: PendingAdmission, answers: PreferenceAnswers, *, last: bool = False
    ) -> AdmissionResult | PendingAdmission:
        """Place a pod again with the plugins' *answers*; after the *last* round, plugins are not asked again."""
        if not self._unreserve(pending):
            return AdmissionResult(pending_admission.released_while_pending(pending.decision), None)
        decided = self.decide(pending.pod, source=pending.source, answers=answers)
        if not decided.decision.admitted:
            return self._reject_pending(pending, decided.decision)
        requests = () if last else decided.preference_requests
        decided = replace(decided, preference_requests=requests, seconds=pending.seconds + decided.seconds)
        again = self._reserve(decided, ticket=pending.ticket)
        if again is None:
            raise AssertionError("a pod whose plugins stated preferences has devices of these plugins")
        return again

    def commit(self, pending: PendingAdmission, grants: PodGrants) -> AdmissionResult:
        """Admit a pod whose devices are allocated."""
        uid = pending.pod.uid
        if not self._next.is_current(pending):
            return AdmissionResult(pending_admission.released_while_pending(pending.decision), None)
        del self._next.pending[uid]
        self._next.waiting = self._next.waiting.with_overtakes(uid).without(uid)
        return self._admit(pending.decided(pending.decision), grants=grants)

    def fail(self, pending: PendingAdmission, error: ProviderError) -> AdmissionResult:
        """Reject a pod, or let it wait and back off, because a device plugin failed."""
        decision = pending_admission.rejected_by_plugin(pending.decision, error)
        if not self._unreserve(pending):
            return AdmissionResult(pending_admission.released_while_pending(decision), None)
        return self._reject_pending(pending, decision)

    def undo(self, pending: PendingAdmission) -> None:
        """Release the resources of a pending pod; a waiting pod backs off."""
        if self._unreserve(pending) and pending.pod.uid in self._next.waiting.pods:
            self._next.backing_off.add(pending.pod.uid)

    def end_backoff(self, uid: str) -> bool:
        """Retry the waiting pods; return whether the pod is still waiting."""
        self._changed = self._changed or uid in self._next.backing_off
        self._next.backing_off.discard(uid)
        self.retry_waiting()
        return uid in self._next.waiting.pods

    def release(self, uid: str) -> PodView | None:
        """Remove a pod and retry the waiting pods; ``None``: unknown uid."""
        view = self._remove(uid)
        if view is not None:
            self.retry_waiting()
        return view

    def terminate(self, uid: str, *, grace: float | None = None) -> PodView | None:
        """Request the termination of a pod that the agent runs; the runner releases it when it has ended.

        Of two requests the sooner counts. A waiting pod is released at once. ``None``: unknown uid.
        """
        record = self._next.find(uid)
        if not isinstance(record, PodRecord) or uid in self._next.waiting.pods:
            return self.release(uid)
        request = TerminationRequest(self._clock.now(), grace)
        if record.termination is None or request.is_sooner_than(record.termination):
            self._next.update(replace(record, termination=request))
            self._changed = self.durable = True
            self._emit(EventKind.TERMINATING, pod=record.pod, source=record.source)
        return self._next.freeze(self._before).pod_view(uid)

    def finish(self, uid: str, run: PodRunStatus) -> None:
        """Release the resources of a pod that ran to completion, and keep its final status."""
        record = self._next.admitted.pop(uid, None)
        if record is None:
            return
        self._next.host.release(uid)
        self._next.finished = add_finished(self._next.finished, FinishedPod(record=record, run=run))
        self._changed = self.durable = True
        detail = ": ".join(filter(None, (run.phase, run.reason, run.message)))
        self._emit(EventKind.FINISHED, pod=record.pod, source=record.source, detail=detail)
        self.retry_waiting()

    def container_started(self, uid: str, container: str) -> None:
        """Release what earlier init containers held and no later container reuses."""
        if uid not in self._next.admitted:
            return
        before = self._next.host.ledger
        self._next.host.start_container(uid, container)
        if self._next.host.ledger.by_provider() != before.by_provider():
            self._next.update(replace(self._next.admitted[uid]))
            self._changed = self.durable = True
            self.retry_waiting()

    def replace_pods(
        self, removed: Iterable[str], added: Iterable[tuple[Pod, str]]
    ) -> tuple[AdmissionResult | Exception, ...]:
        """Remove pods of manifests and add others, with their sources, before any waiting pod is retried.

        Return one result for each added pod; an error does not affect the others.
        """
        views = [self._remove(uid) for uid in removed]
        results = tuple(self._try_admit(pod, source) for pod, source in added)
        if any(views):
            self.retry_waiting()
        return results

    def set_devices(self, resource: str, devices: Iterable[Device], *, preferred_allocation: bool = False) -> None:
        """Replace the devices of a plugin, and retry the waiting pods."""
        devices = tuple(devices)
        before = device_state.persistent_facts(self._next.host, resource)
        device_state.set_devices(self._next.host, resource, devices, preferred_allocation=preferred_allocation)
        idle = copy(self._next.host)
        idle.ledger = self._before.idle_ledger
        device_state.set_devices(idle, resource, (replace(device, healthy=True) for device in devices))
        self._before = replace(self._before, idle_ledger=idle.ledger, plugins=self._before.plugins | {resource})
        self._devices_changed(resource, before)
        detail = f"{resource}: {sum(device.healthy for device in devices)} of {len(devices)} devices are healthy"
        self._emit(EventKind.ANNOUNCED, detail=detail)
        self.retry_waiting()

    def plugin_stopped(self, resource: str) -> None:
        """Stop allocating the devices of a plugin until it reconnects."""
        device_state.mark_stopped(self._next.host, resource)
        self._changed = True
        detail = f"{resource}: the device plugin disconnected; its devices are not allocated until it reconnects"
        self._emit(EventKind.STOPPED, detail=detail)

    def remove_resource(self, resource: str) -> None:
        """Remove the devices of a plugin that did not reconnect; pods keep those they hold."""
        before = device_state.persistent_facts(self._next.host, resource)
        device_state.remove_resource(self._next.host, resource)
        self._devices_changed(resource, before)
        detail = f"{resource}: the device plugin did not reconnect in time; the resource is removed"
        self._emit(EventKind.GONE, detail=detail)

    def retry_waiting(self) -> None:
        """Admit the waiting pods that fit now, in order."""
        misfits: set[str] = set()  # request keys that do not fit the current ledger
        passed: list[str] = []
        for uid, record in self._next.waiting.pods.items():
            if uid in self._next.pending or uid in self._next.backing_off:
                continue
            if record.request_key not in misfits and self._retry(record):
                misfits.clear()
                overtaken = passed
            else:
                misfits.add(record.request_key)
                passed.append(uid)
                overtaken = [uid]
            if any(map(self._blocks, overtaken)):
                return

    def _retry(self, record: PodRecord) -> bool:
        """Return whether a waiting pod fits now; it is then admitted or pending."""
        try:
            decided = self.decide(record.pod, source=record.source)
        except (AlignError, NotReadyError):  # must not keep other pods waiting
            return False
        if not decided.decision.admitted:
            self._next.waiting = self._next.waiting.updated(record.with_decision(decided.decision))
            self._changed = True
            return False
        if pending := self._reserve(decided):
            decision = pending_admission.waiting_for_devices(pending)
            self._next.waiting = self._next.waiting.updated(record.with_decision(decision))
            self.started.append(pending)
            return True
        uid = record.pod.uid
        self._next.waiting = self._next.waiting.with_overtakes(uid).without(uid)
        self._next.host.apply(decided.decision)
        self._admit(decided)
        return True

    def _blocks(self, uid: str) -> bool:
        """Whether no pod behind a waiting pod may be admitted; a pod that waits for a plugin blocks no other."""
        return (
            self._next.waiting.is_blocking(uid)
            and uid not in self._next.pending
            and uid not in self._next.backing_off
            and not device_state.lacks_healthy_devices(self._next.host, self._next.waiting.pods[uid].pod)
        )

    def _emit(self, kind: EventKind, *, pod: Pod | None = None, source: str = API_SOURCE, detail: str = "") -> None:
        self.events.append(AgentEvent(kind=kind, time=self._clock.now(), pod=pod, source=source, detail=detail))

    def _emit_decision(self, kind: EventKind, decided: DecidedPod) -> None:
        self.events.append(
            AgentEvent(
                kind=kind,
                time=self._clock.now(),
                pod=decided.pod,
                source=decided.source,
                decision=decided.decision,
                seconds=decided.seconds,
            )
        )

    def _admit_again(self, pod: Pod, known: PodRecord | PendingAdmission, *, source: str) -> AdmissionResult:
        name = f"{known.pod.namespace}/{known.pod.name}"
        if not same_workload(pod, known.pod):
            what = f"is the uid of pod {name}, which has other requests; release that pod first"
            raise PodError([Problem("metadata.uid", what)])
        if isinstance(known, PendingAdmission):
            raise NotReadyError(f"the devices of pod {name} are being prepared")
        decision = known.decision
        if pod.uid in self._next.admitted:
            decision = self._next.host.decide(known.pod)
            self._emit_decision(EventKind.KEPT, DecidedPod(known.pod, source, decision, (), 0.0))
        return AdmissionResult(decision, self._next.freeze(self._before).pod_view(pod.uid))

    def _try_admit(self, pod: Pod, source: str) -> AdmissionResult | Exception:
        try:
            result = self.admit(pod, source=source)
        except (AlignError, BusyError, NotReadyError) as error:
            return error
        return AdmissionResult(result.decision, None) if isinstance(result, PendingAdmission) else result

    def _reserve(self, decided: DecidedPod, *, ticket: object = None) -> PendingAdmission | None:
        """Make an admitted pod pending if plugins must allocate its devices; ``None`` if not."""
        requests = device_state.device_requests(decided.decision, decided.pod, served=self._before.plugins)
        if not requests:
            return None
        self._next.host.apply(decided.decision)
        pending = self._next.pending[decided.pod.uid] = decided.pending(requests, ticket=ticket or object())
        self._changed = True
        return pending

    def _unreserve(self, pending: PendingAdmission) -> bool:
        """Release the resources of a pending pod; return whether it still held them."""
        if not self._next.is_current(pending):
            return False
        self._next.host.release(pending.pod.uid)
        del self._next.pending[pending.pod.uid]
        self._changed = True
        return True

    def _wait_for_plugins(self, pending: PendingAdmission) -> AdmissionResult:
        """Let a pending pod wait for its plugins in the wait queue."""
        try:
            result = self._wait(pending.decided(pending_admission.waiting_for_devices(pending)))
        except BusyError:
            self._unreserve(pending)
            raise
        self.started.append(pending)
        return result

    def _reject_pending(self, pending: PendingAdmission, decision: Decision) -> AdmissionResult:
        """Reject a pod that was pending, or let it wait; others may get its resources."""
        uid, decided = pending.pod.uid, pending.decided(decision)
        if (record := self._next.waiting.pods.get(uid)) is not None:
            self._next.waiting = self._next.waiting.updated(record.with_decision(decision))
            self._emit_decision(EventKind.WAITING, decided)
        elif self._may_wait(pending.pod, pending.source):
            self._wait(decided)
        else:
            self._reject(decided)
        if uid in self._next.waiting.pods:
            self._next.backing_off.add(uid)
        self.retry_waiting()
        return AdmissionResult(decision, self._next.freeze(self._before).pod_view(uid))

    def _admit(self, decided: DecidedPod, *, grants: PodGrants | None = None) -> AdmissionResult:
        """Record a pod whose resources the ledger holds."""
        self._emit_decision(EventKind.ADMITTED, decided)
        record = self._next.admitted[decided.pod.uid] = decided.record(self._clock.now(), grants or {})
        self._changed = self.durable = True
        return AdmissionResult(decided.decision, pod_view(record, AdmissionStatus.ADMITTED))

    def _reject(self, decided: DecidedPod) -> AdmissionResult:
        self._emit_decision(EventKind.REJECTED, decided)
        return AdmissionResult(decided.decision, None)

    def _wait(self, decided: DecidedPod) -> AdmissionResult:
        record = decided.record(self._clock.now(), {})
        self._next.waiting = self._next.waiting.added(record)
        self._emit_decision(EventKind.WAITING, decided)
        self._changed = self.durable = True
        view = pod_view(record, AdmissionStatus.WAITING, position=len(self._next.waiting.pods))
        return AdmissionResult(decided.decision, view)

    def _may_wait(self, pod: Pod, source: str) -> bool:
        """Whether a rejected pod may wait: waiting is enabled, and the pod fits the empty host."""
        if not self._before.wait_enabled and source == API_SOURCE:
            return False
        empty = copy(self._next.host)
        empty.ledger = self._before.idle_ledger
        return assume_no_preferences(empty, pod, empty.decide(pod), {}).admitted

    def _remove(self, uid: str) -> PodView | None:
        """Remove a pod and release its resources."""
        view = self._next.freeze(self._before).pod_view(uid)
        if pending := self._next.pending.get(uid):
            self._unreserve(pending)
            view = view or pending_pod_view(pending, since=self._clock.now())
        if view is None:
            return None
        if uid in self._next.admitted:
            self._next.host.release(uid)
            del self._next.admitted[uid]
        elif uid in self._next.finished:
            del self._next.finished[uid]
        else:
            self._next.waiting = self._next.waiting.without(uid)
            self._next.backing_off.discard(uid)
        self._changed = self.durable = True
        self._emit(EventKind.RELEASED, pod=view.pod, source=view.source)
        return view

    def _devices_changed(self, resource: str, before: tuple[object, ...]) -> None:
        """Plugins list their devices again after a crash; only what pods hold must be durable."""
        self._changed = True
        self.durable = self.durable or device_state.persistent_facts(self._next.host, resource) != before
