"""The cluster around a scheduling state: an API server with late watches, kubelets, schedulers, and random pods.

Kubelets, time and pods are those of ``tests.placement.model``: real kubelets decide like that. An event about one pod
comes after the earlier ones about it, and after the earlier ones about other pods on its node. All others may overtake
each other, and some come twice.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import count, cycle, product

from alignup.align.bits import NodeSet
from alignup.align.devices.demanded_locality import check_demand, locality_demands
from alignup.align.fit import NodeAllocatable, UsedResources, insufficient_resources
from alignup.align.host import Host
from alignup.align.locality import PciPath
from alignup.align.machine import Device, PciDevice
from alignup.align.settings import Policy, Scope
from alignup.align.workload import Container, Pod, demand
from alignup.align.workload.names import (
    DEVICES_ANNOTATION,
    MARKER,
    NUMA_ANNOTATION,
    POLICY_ANNOTATION,
    SCOPE_ANNOTATION,
)
from alignup.align.workload.pod import PodClaim
from alignup.placement.host_report import HostReport, PodStage
from alignup.placement.scheduling.facts import GroupKey, WaitingOrder, WaitState
from alignup.placement.steered import ANYWHERE, with_markers
from tests.align.hosts import GPU, NIC, make_host
from tests.placement.model_api import ApiServer, PodObject, Watch, World
from tests.placement.model_kubelet import ModelKubelet
from tests.placement.scheduling.machine import SCHEDULER
from tests.strategies_pods import container, guaranteed

GATE, OTHER_GATE = "gate", "other"
NARROW, WIDE = "pack:4 numa:1 core:2 pu:1", "pack:2 numa:1 core:4 pu:1"
DELAYS = ((0.001, 0.1), (0.001, 0.1), (0.1, 2.0))  #: of events, in seconds
REPEATED = 0.05  #: of all events
HOLD_SECONDS = 5.0  #: for which observers wait for a steered pod


@dataclass
class ModelPod(PodObject):
    """A pod in the API server; an event has a copy."""

    version: int = 1
    gates: tuple[str, ...] = ()
    released_to: tuple[str, ...] = ()
    unschedulable: bool = False
    group: GroupKey | None = None
    scheduler: str = SCHEDULER
    controllers: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()  #: nodes that its selectors do not allow
    at_once: bool = False  #: whether its scheduler binds the pods of its group when none has a gate
    ignored: bool = False  #: whether its scheduler never binds it
    asks: bool = False  #: whether it came without a gate, so that its scheduler asks the extender

    @property
    def uid(self) -> str:
        return self.pod.uid

    @property
    def order(self) -> WaitingOrder:
        return (-(self.pod.priority or 0), f"{self.created:012.3f}", self.pod.namespace, self.pod.name)

    @property
    def state(self) -> WaitState:
        if self.host or self.stage is not PodStage.RUNNING:
            return WaitState.OTHER
        if GATE in self.gates:
            return WaitState.GATED if len(self.gates) == 1 else WaitState.OTHER_GATES
        return WaitState.UNSCHEDULABLE if self.unschedulable and not self.gates else WaitState.OTHER


class FrozenKubelet(ModelKubelet):
    """A kubelet whose pods do not end while *frozen* says so, unless they are deleted."""

    frozen: Callable[[], bool] = staticmethod(lambda: False)

    def __init__(self, name: str, host: Host, api: "ModelApi") -> None:
        self.demands = 0  #: demands for near devices of pods that it has admitted
        self.seen: set[str] = set()  #: uids of pods that it has decided on
        self.used_numa_nodes: dict[str, int] = {}  #: by uid, of each pod that it has admitted
        self.steered = (0, "", 0)  #: the generation of the last instruction, the uid of its pod, and NUMA nodes
        self._api = api
        super().__init__(name, host, api, api.publish)

    def admit_bound(self, pod_object: PodObject, markers: NodeSet = ANYWHERE) -> None:
        """Decide with the markers that are not withdrawn."""
        self.seen.add(pod_object.pod.uid)
        generation, uid, nodes = self.steered
        super().admit_bound(pod_object, markers or nodes)
        self.check_devices(pod_object.pod)
        self.used_numa_nodes[pod_object.pod.uid] = self.numa_nodes(pod_object.pod.uid)
        if uid == pod_object.pod.uid:
            self.steer(generation, "", 0, "Done")

    def check_devices(self, pod: Pod) -> None:
        """An admitted pod has devices that are as near as it demands."""
        devices = self.host.ledger.devices.held.get(pod.uid, {})
        for each, place in product(locality_demands(pod), devices):
            answer = check_demand(each, self.host.machine.locality, devices[place])
            assert answer.satisfied, f"{pod.uid} on {self.name}: {answer.reason}"
            self.demands += 1

    def steer(self, generation: int, uid: str, nodes: int, phase: str) -> None:
        """What its observer does, unless there is a newer instruction."""
        if generation >= self.steered[0]:
            self.steered = (generation, uid, nodes)
            self._api.tell_steering(self.name, generation, phase, uid, nodes)

    def finish(self, pod_object: PodObject) -> None:
        if self.frozen() and pod_object.stage is PodStage.RUNNING and pod_object.pod.uid in self.running:
            self.world.after(5.0, lambda: self.finish(pod_object))
        else:
            super().finish(pod_object)


class ModelApi(ApiServer):
    """The API server; *receive* gets ``("pod", copy, stage, reason)``, ``("node", name)`` and so on, late."""

    pods: dict[str, ModelPod]  # type: ignore[assignment]
    _kubelets: dict[str, FrozenKubelet]

    def __init__(self, world: World, receive: Callable[..., object]) -> None:
        super().__init__(world)
        self._receive = receive
        self._lanes: dict[str, Watch] = {}
        self.nodes: dict[str, NodeAllocatable] = {}
        self.minimums: dict[GroupKey, int] = {}
        self.claims: set[str] = set()  #: uids of pods whose claims have devices
        #: uids of pods that their scheduler does not try again by itself, and the nodes that had room for them
        self.aside: dict[str, frozenset[str]] = {}
        self._generations: dict[str, int] = {}  #: of instructions to observers, by node
        self.instructions: dict[str, tuple[int, str, str, int]] = {}  #: generation, phase, uid, NUMA nodes, by node
        self.bindings: dict[str, int] = {}  #: uid → its place among all bindings
        self.on_rejection: Callable[[ModelPod, str], object] = lambda _pod, _reason: None
        self.on_binding: Callable[[ModelPod], object] = lambda _pod: None

    def send(self, lane: str, *event: object, after: str = "") -> None:
        """Deliver an event late, after the earlier ones of its lane, and of the lane *after*."""
        watch = self._lanes.setdefault(lane, Watch(self.world, self._receive, DELAYS[0]))
        watch.delay = self.world.random.choice(DELAYS)
        before = self._lanes.get(after)
        watch.last = max(watch.last, before.last if before else 0.0)
        for _ in range(1 + (self.world.random.random() < REPEATED)):
            watch.send(*event)
        if before is not None:
            before.last = watch.last

    def close(self) -> None:
        """Lose all events that are on their way: what follows is a list."""
        for watch in self._lanes.values():
            watch.close()
        self._lanes.clear()

    # Pods

    def create(self, pod_object: ModelPod) -> None:
        self.pods[pod_object.uid] = pod_object
        self._tell(pod_object)

    def change(self, uid: str, **changes: object) -> None:
        """Record a change of a pod without a node."""
        pod_object = self.pods[uid]
        vars(pod_object).update(changes, version=pod_object.version + 1)
        if "unschedulable" not in changes:
            self.aside.pop(uid, None)
        self._tell(pod_object)

    def release(self, uid: str, version: str, nodes: tuple[str, ...]) -> bool:
        """Remove the gate if the pod has not changed; return whether it was done."""
        pod_object = self.pods.get(uid)
        if pod_object is None or str(pod_object.version) != version:
            return False
        self.change(uid, gates=(), released_to=nodes)
        return True

    def bind(self, uid: str, host: str) -> bool:
        pod_object = self.pods.get(uid)
        if pod_object is None or pod_object.host or pod_object.gates or pod_object.stage is not PodStage.RUNNING:
            return False
        pod_object.host = host
        self.bindings[uid] = len(self.bindings)
        self.on_binding(pod_object)
        self.record(uid)
        if pod_object.pod.uses_claims:
            self.world.after(self.world.random.uniform(0.1, 3), lambda: self._allocate(pod_object))
        return True

    def _allocate(self, pod_object: ModelPod) -> None:
        if pod_object.uid in self.pods:
            self.claims.add(pod_object.uid)
            self.send("claims", "claims", pod_object.pod.namespace)

    def delete(self, uid: str) -> None:
        """Delete a pod, with a grace period if it is bound; some of the others have finalizers."""
        pod_object = self.pods.get(uid)
        if pod_object is None:
            return
        if pod_object.host:
            if pod_object.stage is PodStage.RUNNING:
                self.record(uid, PodStage.TERMINATING)
        elif self.world.random.random() < 0.3 and pod_object.stage is PodStage.RUNNING:
            self.change(uid, stage=PodStage.TERMINATING)
            self.world.after(self.world.random.uniform(0.1, 5), lambda: self.delete(uid))
        else:
            pod_object.stage = PodStage.ENDED
            del self.pods[uid]
            self._tell(pod_object)

    def record(self, uid: str, stage: PodStage = PodStage.RUNNING, reason: str = "") -> None:
        pod_object = self.pods[uid]
        pod_object.stage = stage
        pod_object.version += 1
        if stage is PodStage.ENDED:
            del self.pods[uid]
            self.claims.discard(uid)
            self._try_aside(pod_object.host)
        if reason:
            self.on_rejection(pod_object, reason)
        self._tell(pod_object, reason)
        self.kubelets[pod_object.host].send(pod_object, stage, reason)

    def _tell(self, pod_object: ModelPod, reason: str = "") -> None:
        lane, changed = pod_object.host or pod_object.uid, replace(pod_object)
        self.send(lane, "pod", changed, changed.stage, reason, after=pod_object.uid)

    # Nodes

    def _try_aside(self, node: str) -> None:
        """The scheduler tries pods again for which a node had no room by its Node object."""
        self.aside = {uid: nodes for uid, nodes in self.aside.items() if node in nodes}

    def add_node(self, name: str, allocatable: NodeAllocatable) -> None:
        self.nodes[name] = allocatable
        self._try_aside(name)
        self.send(f"node {name}", "node", name, allocatable)

    def remove_node(self, name: str) -> None:
        del self.nodes[name]
        self.send(f"node {name}", "node", name, None)

    def publish(self, report: HostReport) -> None:
        self.reports[report.host] = report
        self.send(f"report {report.host}", "report", report)

    def steer(self, node: str, uid: str, nodes: int) -> int:
        """Record an instruction for the observer of a node, which may be slow or away; return its generation."""
        generation = self._generations[node] = self._generations.get(node, 0) + 1
        kubelet, random = self._kubelets[node], self.world.random
        self.tell_steering(node, generation, "", uid, nodes)
        if random.random() < 0.1 and uid:
            return generation
        delay = random.choice((0.02, 0.1, 2.0))
        self.world.after(delay, lambda: kubelet.steer(generation, uid, nodes, "Ready" if uid else ""))
        if uid:
            self.world.after(delay + HOLD_SECONDS, lambda: self._expire(kubelet, generation, uid))
        return generation

    def tell_steering(self, node: str, generation: int, phase: str, uid: str, nodes: int) -> None:
        """Record an instruction, and what the observer says about it, if it is about the present one."""
        if generation == self._generations[node]:
            self.instructions[node] = (generation, phase, uid, nodes)
            self.send(f"steering {node}", "steering", node, generation, phase, uid, nodes)

    def _expire(self, kubelet: FrozenKubelet, generation: int, uid: str) -> None:
        if kubelet.steered[:2] == (generation, uid):
            kubelet.steer(generation, "", 0, "Expired")

    def has_room(self, name: str, pod: Pod) -> bool:
        """Whether kube-scheduler would find room by the Node object."""
        if name not in self.nodes:
            return False
        used = UsedResources()
        for other in self.pods.values():
            if other.host == name:
                used = used.plus(demand.fit_used(other.pod))
        return not insufficient_resources(demand.fit_request(pod), usage=used, allocatable=self.nodes[name])


def kubelets(api: ModelApi, number: int, frozen: Callable[[], bool]) -> dict[str, FrozenKubelet]:
    """Hosts with four NUMA nodes of two CPUs, and with two nodes of four, of which the last have other policies."""
    made: dict[str, FrozenKubelet] = {}
    for place in range(number):
        shape, numa_nodes = ((NARROW, 4), (WIDE, 2))[place % 2]
        devices = {GPU: numa_nodes, NIC: numa_nodes, MARKER: 8 * numa_nodes}
        name = f"node-{place}"
        memory = (16 * numa_nodes - 1) << 30
        api.nodes[name] = NodeAllocatable(milli_cpu=7000, memory=memory, ephemeral_storage=0, pods=110, scalars=devices)
        policy = {number - 1: Policy.NONE, number - 2: Policy.BEST_EFFORT}.get(place, Policy.SINGLE_NUMA_NODE)
        host = marked_host(shape, numa_nodes, policy, near=place % 3 > 0)
        kubelet = made[name] = FrozenKubelet(name, host, api)
        kubelet.frozen = frozen
    api._kubelets = made  # noqa: SLF001 - the other side of their connection
    return made


def marked_host(shape: str, numa_nodes: int, policy: Policy = Policy.SINGLE_NUMA_NODE, *, near: bool = True) -> Host:
    """A host with markers; the GPU and the NIC of a NUMA node are below one root complex if they are *near*."""
    host = make_host(policy, shape=shape)
    pci = tuple(
        PciDevice(
            f"0000:{bus + node:02x}:00.0", kind=kind, node=node, path=PciPath(f"pci0000:{root + node}", ("port",))
        )
        for node in range(numa_nodes)
        for bus, root, kind in ((16, 0, 0x030200), (32, 0 if near else 8, 0x020000))
    )
    addresses = {f"{name}-{device.node}": device.address for name, device in zip(cycle(("gpu", "nic")), pci)}
    devices = [replace(device, address=addresses[device.id]) for device in host.machine.devices]
    markers = tuple(
        Device(MARKER, f"numa-{node}-{number}", nodes=1 << node) for node in range(numa_nodes) for number in range(8)
    )
    return Host(replace(host.machine, devices=(*devices, *markers), pci=pci), host.settings)


class PodMaker:
    """Random pods and gangs."""

    def __init__(self, world: World, nodes: Iterable[str]) -> None:
        self._random, self._world, self._nodes = world.random, world, tuple(nodes)
        self._numbers = count()
        self._marked = count()

    def pod(self, *, namespace: str | None = None, priority: int | None = None) -> ModelPod:
        random, number = self._random, next(self._numbers)
        cpus, gpus = random.choice(((1, 0), (1, 1), (2, 0), (2, 0), (2, 1), (3, 0), (4, 0), (4, 1)))
        asked = {"cpu": str(cpus), "memory": "1Gi"} | ({GPU: str(gpus)} if gpus else {})
        annotations = {}
        if gpus and random.random() < 0.4:
            asked[NIC] = "1"
            annotations[DEVICES_ANNOTATION] = random.choice(("same-root", f"same-switch={GPU},{NIC}", "far"))
        containers: tuple[Container, ...] = (guaranteed("app", asked),)
        kind = random.random()
        if kind < 0.15:
            containers = (container("app", {"cpu": "500m"}),)
        elif kind < 0.25:
            containers = (*containers, guaranteed("more", {"cpu": "1", "memory": "64Mi"}))
        elif kind < 0.26:
            containers = tuple(container(f"app-{place}", {"cpu": "50m"}) for place in range(21))
        if random.random() < 0.25:
            annotations[POLICY_ANNOTATION] = random.choice((*Policy, Policy.SINGLE_NUMA_NODE, "unknown"))
            if random.random() < 0.5:
                annotations[SCOPE_ANNOTATION] = random.choice(tuple(Scope))
        claims = (PodClaim("device", claim=f"claim-{number}"),) if random.random() < 0.05 else ()
        return ModelPod(
            Pod(
                name=f"pod-{number}",
                uid=f"uid-{number}",
                namespace=namespace or random.choice(("a", "b")),
                containers=containers,
                annotations=annotations,
                claims=claims,
                priority=random.choice((None, None, None, 10)) if priority is None else priority,
            ),
            lifetime=random.choice((3.0, 10.0, 40.0)) * random.uniform(0.5, 1.5),
            created=self._world.now,
            gates=(GATE,),
            forbidden=frozenset(random.sample(self._nodes, 2)) if random.random() < 0.2 else frozenset(),
            controllers=frozenset((f"uid-owner-{number % 5}",)) if random.random() < 0.5 else frozenset(),
            scheduler="unknown" if random.random() < 0.01 else SCHEDULER,
            ignored=random.random() < 0.02,
        )

    def alone(self) -> ModelPod:
        pod_object, kind = self.pod(), self._random.random()
        if kind < 0.3:
            pod = with_markers(pod_object.pod) if self._random.random() < 0.3 else None
            if pod is not None:
                named = {NUMA_ANNOTATION: "1"} if next(self._marked) % 2 else {}
                pod = replace(pod, annotations={**pod.annotations, **named})
            return replace(pod_object, pod=pod or pod_object.pod, gates=(), asks=True, scheduler=SCHEDULER)
        return replace(pod_object, gates=(GATE, OTHER_GATE)) if kind < 0.4 else pod_object

    def gang(self) -> tuple[GroupKey, int, list[ModelPod]]:
        """A group, its minimum, and its pods, of which some may be missing."""
        random = self._random
        namespace, at_once = random.choice(("a", "b")), random.random() < 0.3
        key = GroupKey(namespace, f"uid-group-{next(self._numbers)}", "test")
        size = random.randint(2, 4)
        alike = random.random() < 0.5
        first = self.pod(namespace=namespace)
        pods = [first]
        for _ in range(size - 1):
            other = self.pod(namespace=namespace)
            containers = first.pod.containers if alike else other.pod.containers
            pods.append(replace(other, pod=replace(other.pod, containers=containers, priority=first.pod.priority)))
        asks = random.random() < 0.4
        members = [
            replace(
                each,
                group=key,
                at_once=at_once and not asks,
                gates=() if asks else each.gates,
                asks=asks,
                scheduler=SCHEDULER,
                pod=replace(each.pod, claims=()),
            )
            for each in pods
        ]
        return key, random.randint(2, size), members
