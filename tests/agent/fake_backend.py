"""A backend for tests of the API: a real host, the history in a list."""

import asyncio
import itertools
import json
from collections.abc import Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import replace
from typing import Any, cast

import httpx2
import yaml

from alignup.agent.app import RequestLimits, build_app
from alignup.agent.metrics import Metrics
from alignup.agent.state import AdmissionResult, AdmissionStatus, PodView
from alignup.agent.transaction import Transaction
from alignup.align.cpus.options import CpuSettings
from alignup.align.decision import Decision
from alignup.align.errors import PodError, Problem
from alignup.align.host import Host, Settings
from alignup.align.machine import Device
from alignup.align.memory.reserved_memory import ReservedMemory
from alignup.align.quantity import Quantity
from alignup.align.settings import Policy, Scope, TopologySettings
from alignup.align.workload import Pod
from alignup.align.workload.validation import accept
from alignup.documents.decisions import to_document
from alignup.kubernetes.manifests import documents
from alignup.kubernetes.manifests.pod_decoder import read_pod
from alignup.machines.synthetic import parse
from alignup.store.history import DecisionQuery, StoredDecision
from alignup.web.authentication import AccessRules
from alignup.web.event_streams import EventBus

GPU = "example.com/gpu"
START = 1_800_000_000.0


def host(
    policy=Policy.SINGLE_NUMA_NODE,
    *,
    scope=Scope.CONTAINER,
    options=(),
):
    """Two NUMA nodes of eight CPUs, 16 GiB and two GPUs each; two CPUs and 1 GiB of node 0 are reserved."""
    machine = parse("pack:2 numa:1(memory=16GiB) core:4 pu:2")
    devices = tuple(Device(GPU, f"gpu-{number}", nodes=1 << number // 2) for number in range(4))
    kept = {"cpu": Quantity.parse("2"), "memory": Quantity.parse("1Gi")}
    settings = Settings(
        topology=TopologySettings(policy=policy, scope=scope),
        cpus=CpuSettings(policy="static", options=dict(options), reservation=kept["cpu"]),
        memory_policy="Static",
        reserved_memory=(ReservedMemory(0, {"memory": kept["memory"]}),),
        reservation=kept,
    )
    return Host(replace(machine, devices=devices), settings)


def manifest(name: str, *, uid: str | None = None, **amounts: str) -> dict[str, Any]:
    """A pod of one container whose limits are *amounts*."""
    limits = {GPU if key == "gpu" else key: amount for key, amount in amounts.items()}
    container = {"name": "app", "resources": {"limits": limits}}
    metadata = {"name": name, "uid": uid or f"default-{name}"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def read(body: bytes) -> Pod:
    """Read a pod; a pod without a uid gets one from its name."""
    loaded = documents.read(body)
    if len(loaded) != 1:
        raise PodError([Problem("", f"one document is expected, and there are {len(loaded)}")])
    pod = read_pod(loaded[0].value)
    return accept(replace(pod, uid=pod.uid or f"{pod.namespace or 'default'}-{pod.name}"))


class FakeBackend:
    """A backend that decides at once and keeps everything; with *wait_enabled*, pods that do not fit wait."""

    def __init__(self, of: Host | None = None, *, wait_enabled=False) -> None:
        self.host = of or host()
        self.wait_enabled = wait_enabled
        self.not_ready: tuple[str, ...] = ()
        self.error: Exception | None = None
        self.arrived = asyncio.Event()  #: set when a pod arrives
        self.proceed: asyncio.Event | None = None  #: what a decision waits for
        self.clock = itertools.count(int(START))
        self.event_bus = EventBus(now=lambda: float(next(self.clock)), capacity=4)
        self.known: dict[str, PodView] = {}
        self.stored: list[StoredDecision] = []
        self.rejected_pods: dict[str, Pod] = {}
        self.notes = ("web.yaml cannot be used",)
        self.plugins = {GPU}
        self.queue = self.allocator = self.probe = self  # as the parts of an agent
        self.metrics = Metrics(
            lambda: self.host, waiting=lambda: sum(view.position is not None for view in self.known.values())
        )

    @property
    def state(self) -> "FakeBackend":
        """What does not change any more."""
        snapshot = copy(self)
        snapshot.known = dict(self.known)
        return snapshot

    @property
    def waiting(self) -> list[PodView]:
        return [view for view in self.known.values() if view.status is AdmissionStatus.WAITING]

    @property
    def admitted(self) -> list[PodView]:
        return [view for view in self.known.values() if view.status is AdmissionStatus.ADMITTED]

    async def problems(self) -> tuple[str, ...]:
        return self.not_ready

    def shown_host(self) -> Host:
        return self.host

    def pod_views(self, start: int = 0, stop: int | None = None) -> Sequence[PodView]:
        return sorted(self.known.values(), key=lambda entry: entry.position or 0)[start:stop]

    def pod_view(self, uid: str) -> PodView | None:
        return self.known.get(uid)

    async def dry_run(self, pod: Pod) -> AdmissionResult:
        return await self.admit(pod, dry_run=True)

    async def admit(self, pod: Pod, *, dry_run: bool = False) -> AdmissionResult:
        self.arrived.set()
        if self.proceed:  # what has begun takes effect, even if the caller is cancelled
            return await asyncio.shield(self.admit_later(self.proceed, pod, dry_run=dry_run))
        return self.admit_now(pod, dry_run=dry_run)

    async def admit_later(self, proceed: asyncio.Event, pod: Pod, *, dry_run: bool) -> AdmissionResult:
        await proceed.wait()
        return self.admit_now(pod, dry_run=dry_run)

    def admit_now(self, pod: Pod, *, dry_run: bool) -> AdmissionResult:
        if self.error:
            raise self.error
        decision = self.host.decide(pod)
        if dry_run:
            return AdmissionResult(decision, None)
        self.metrics.decided(decision, pod=pod, seconds=0.001)
        outcome = "waiting" if not decision.admitted and self.wait_enabled else str(decision.outcome)
        number, now, document = len(self.stored) + 1, next(self.clock), to_document(decision)
        self.stored.append(StoredDecision(id=number, time=now, outcome=outcome, document=document))
        if decision.admitted and not decision.kept:
            self.host.apply(decision)
        is_waiting = not decision.admitted and self.wait_enabled
        self.event_bus.publish("waiting" if is_waiting else str(decision.outcome), {"uid": pod.uid})
        if not decision.admitted and not is_waiting:
            self.rejected_pods[pod.uid] = pod
            return AdmissionResult(decision, None)
        return AdmissionResult(decision, self.remember(pod, decision, is_waiting=is_waiting))

    async def admit_document(self, document: dict[str, Any]) -> AdmissionResult:
        return await self.admit(read(as_json(document)))

    def remember(self, pod: Pod, decision: Decision, *, is_waiting: bool) -> PodView:
        position = len(self.waiting) + 1 if is_waiting else None
        self.known[pod.uid] = PodView(
            pod=pod,
            status=AdmissionStatus.WAITING if is_waiting else AdmissionStatus.ADMITTED,
            since=next(self.clock),
            source="api",
            decision=decision,
            position=position,
        )
        return self.known[pod.uid]

    async def run(self, action: Any, uid: str) -> PodView | None:
        assert action is Transaction.release
        if self.error:
            raise self.error
        return self.remove(uid)

    def remove(self, uid: str) -> PodView | None:
        """Remove a pod at once."""
        self.host.release(uid)
        entry = self.known.pop(uid, None)
        if entry:
            self.event_bus.publish("released", {"uid": uid})
        return entry

    def serves(self, resource: str) -> bool:
        return resource == GPU

    async def decisions(self, query: DecisionQuery) -> Sequence[StoredDecision]:
        if self.error:
            raise self.error
        stored = [decision for decision in reversed(self.stored) if query.before is None or decision.id < query.before]
        stored = [decision for decision in stored if query.outcome in {None, decision.document["outcome"]}]
        stored = [
            decision for decision in stored if query.pod is None or query.pod in {*decision.document["pod"].values()}
        ]
        return stored[: query.limit]

    async def decision(self, id_: int) -> StoredDecision | None:
        return next((decision for decision in self.stored if decision.id == id_), None)


def app_of(agent, *, token: bytes | None = None, access: AccessRules | None = None, **options):
    """The application of *agent*; with a *token*, every request must present it."""
    limits = RequestLimits(**{key: options.pop(key) for key in tuple(options) if hasattr(RequestLimits, key)})
    access = access or AccessRules(everyone=token is None, token=token)
    return build_app(cast("Any", agent), agent.metrics, access=access, limits=limits, **options)


@asynccontextmanager
async def client_of(agent, **options):
    """A client in the same process."""
    transport = httpx2.ASGITransport(app=app_of(agent, **options), raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://agent") as client:
        yield client


def as_yaml(document) -> bytes:
    return yaml.safe_dump(document).encode()


def as_json(document) -> bytes:
    return json.dumps(document).encode()
