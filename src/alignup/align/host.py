"""A host: one machine under one configuration, with a ledger of who holds what.

    host = Host(machine, settings)
    decision = host.decide(pod)     # pure: changes nothing, calls nobody
    host.apply(decision)
    host.release(pod.uid)
    decision = host.admit(pod)      # decide, and apply when admitted

Pods are taken as the API server hands them on (``align.workload.validation.accept``); one that would make a ledger wrong, by
a missing uid, two containers of one name or a negative amount, is a ``PodError`` here too.

The simulator, the command line, the agent and the scheduler service differ only in what they do with a decision.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from alignup.align.admit import AdmissionRules, decide
from alignup.align.cpus.options import CpuSettings
from alignup.align.cpus.provider import CpuProvider
from alignup.align.decision import Decision, Outcome
from alignup.align.devices import PreferenceAnswers
from alignup.align.errors import AlignError, PodError, Problem, SettingsError, StateError
from alignup.align.fit import NodeAllocatable
from alignup.align.ledger import Ledger
from alignup.align.machine import Device, KubeletView, Machine
from alignup.align.memory import reserved_memory
from alignup.align.memory.provider import MemoryPolicy, MemorySettings
from alignup.align.memory.reserved_memory import ReservedMemory
from alignup.align.provider import Provider
from alignup.align.providers import CpuHintProvider, DeviceProvider, MemoryProvider
from alignup.align.settings import FeatureGates, Policy, TopologySettings
from alignup.align.workload import Amounts, Container, Pod, validation
from alignup.align.workload.names import CPU, MEMORY


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything a host is told, in the kubelet's terms."""

    topology: TopologySettings = field(default_factory=TopologySettings)
    cpus: CpuSettings = field(default_factory=CpuSettings)
    memory_policy: str = MemoryPolicy.NONE
    reserved_memory: tuple[ReservedMemory, ...] = ()
    reservation: Amounts = field(default_factory=dict)  #: kept for system and Kubernetes, eviction threshold included
    gates: FeatureGates = field(default_factory=FeatureGates)
    preferred_allocation: frozenset[str] = frozenset()  #: resources whose device plugin wants to be asked
    fit_check: bool = True  #: whether a pod must also fit the host as a whole
    max_pods: int = 110
    own_policy: bool = False  #: pods may choose policy and scope by annotation
    #: copy faults of the kubelet that its recorded answers cannot be told apart from (``docs/why/differences.md``)
    kubelet_faults: bool = False


class Host:
    """One machine, its settings, and the ledger as it stands.

    With *ledger* it goes on where another host of this machine and these settings left off; a provider among *others*
    that is new to it starts idle. ``SettingsError`` where a kubelet would not start.
    """

    def __init__(
        self,
        machine: Machine,
        settings: Settings | None = None,
        *,
        ledger: Ledger | None = None,
        others: Sequence[Provider[Any]] = (),
    ) -> None:
        self.machine = machine
        self.settings = settings = settings or Settings()
        self.view = view = machine.kubelet_view()
        gates = settings.gates
        with _of("topology"):
            settings.topology.check_machine(nodes=len(view.nodes), distances=view.distances is not None)
            if settings.topology.policy is not Policy.NONE or settings.own_policy:
                _check_nodes(view)
        self._devices = DeviceProvider(view.all_nodes, machine.devices, settings.preferred_allocation)
        with _of("cpu"):
            cpus = CpuProvider.create(
                view,
                settings.cpus,
                # Pods that choose for themselves may choose the strictest, which has to go with the options.
                topology=Policy.SINGLE_NUMA_NODE if settings.own_policy else settings.topology.policy,
                gates=gates,
                kubelet_faults=settings.kubelet_faults,
            )
        with _of("memory"):
            policy = MemoryPolicy.parse(settings.memory_policy)
            kept: Mapping[int, Mapping[str, int]] = {}
            if policy is MemoryPolicy.STATIC:
                kept = reserved_memory.reserved_by_node(
                    settings.reserved_memory, settings.reservation, nodes=view.nodes
                )
        memory = MemoryProvider(
            view, MemorySettings.of_gates(policy, gates, kubelet_faults=settings.kubelet_faults), kept
        )
        self._rest: tuple[Provider[Any], ...] = (CpuHintProvider(cpus), memory, *others)
        _check_names(self.providers)
        self.rules = AdmissionRules(
            topology=settings.topology,
            nodes=view.all_nodes,
            distances=view.distances if settings.topology.options.prefer_closest else None,
            pod_level=gates.on("PodLevelResourceManagers") and gates.on("PodLevelResources"),
            allocatable=node_allocatable(machine, settings) if settings.fit_check else None,
            own_policy=settings.own_policy,
        )
        self.ledger = self._begun(ledger or Ledger({}))

    @property
    def providers(self) -> tuple[Provider[Any], ...]:
        """Devices, CPUs, memory, and whoever joined, in the order they are asked."""
        return (self._devices, *self._rest)

    def decide(self, pod: Pod, answers: PreferenceAnswers | None = None) -> Decision:
        """What would become of *pod* now; *answers* are what device plugins said to an earlier decision's ``asks``."""
        _check_sound(pod)
        providers = (replace(self._devices, answers=answers), *self._rest) if answers else self.providers
        return decide(pod, self.ledger, providers=providers, rules=self.rules)

    def apply(self, decision: Decision) -> None:
        """Make an admission so; one that was decided on another ledger than the present one is a ``StateError``."""
        if decision.outcome is not Outcome.ADMITTED:
            raise StateError(f"pod {decision.uid} was not admitted, so there is nothing to apply")
        if decision.before is not self.ledger:
            raise StateError(f"the ledger has changed since pod {decision.uid} was decided on; decide again")
        self.ledger = decision.after

    def admit(self, pod: Pod, answers: PreferenceAnswers | None = None) -> Decision:
        """Decide, and apply when admitted."""
        decision = self.decide(pod, answers)
        if decision.admitted:
            self.apply(decision)
        return decision

    def started(self, uid: str, container: str) -> None:
        """A container of an admitted pod starts: init containers before it are done."""
        pod, starting = self._resident(uid, container)
        books = {one.name: one.started(self.ledger.books[one.name], pod, starting) for one in self.providers}
        self.ledger = replace(self.ledger, books=books)

    def release(self, uid: str) -> None:
        """The pod is gone and gives everything back; nothing happens when it was not there."""
        if uid in self.ledger.pods:
            books = {one.name: one.release(self.ledger.books[one.name], uid) for one in self.providers}
            self.ledger = self.ledger.without_pod(uid, books)

    def announce(self, resource: str, devices: Iterable[Device]) -> None:
        """A device plugin says which devices there are, in place of all it said before."""
        devices = tuple(devices)
        strays = sorted({device.resource for device in devices} - {resource})
        if strays:
            raise StateError(f"devices of {', '.join(strays)} were announced as {resource}")
        book = self.ledger.books[self._devices.name].announce(
            resource, devices, preferred_allocation=resource in self.settings.preferred_allocation
        )
        self.ledger = replace(self.ledger, books={**self.ledger.books, self._devices.name: book})

    def _begun(self, ledger: Ledger) -> Ledger:
        """*ledger*, with an idle book for every provider it has none of."""
        unknown = ledger.books.keys() - {one.name for one in self.providers}
        if unknown:
            raise StateError(f"the ledger is of another host: nobody here provides {', '.join(sorted(unknown))}")
        new = {one.name: one.idle() for one in self.providers if one.name not in ledger.books}
        return replace(ledger, books={**ledger.books, **new}) if new else ledger

    def _resident(self, uid: str, container: str) -> tuple[Pod, Container]:
        """A pod that is here, and one of its containers."""
        if uid not in self.ledger.pods:
            raise StateError(f"there is no pod {uid} here")
        pod = self.ledger.pods[uid].pod
        for one in pod.everyone:
            if one.name == container:
                return pod, one
        raise StateError(f"pod {uid} has no container {container}")


def node_allocatable(machine: Machine, settings: Settings) -> NodeAllocatable:
    """What pods may use of a host together: what there is, less what is reserved; devices are counted elsewhere."""
    view = machine.kubelet_view()
    huge: dict[str, int] = {}
    for node in view.nodes:
        for pages in node.hugepages:
            huge[pages.resource] = huge.get(pages.resource, 0) + pages.bytes
    memory = _memory(machine) - sum(huge.values())
    reserved = settings.reservation
    left = {
        name: max(0, size - (reserved[name].value() if name in reserved else 0))
        for name, size in {**huge, MEMORY: memory}.items()
    }
    cpus = 1000 * view.num_cpus - (reserved[CPU].milli() if CPU in reserved else 0)
    return NodeAllocatable(
        milli_cpu=max(0, cpus),
        memory=left.pop(MEMORY),
        ephemeral_storage=_UNLIMITED,
        pods=settings.max_pods,
        scalars=left,
    )


_UNLIMITED = (1 << 63) - 1  #: what a machine does not tell is not held against a pod; disks it never tells


def _memory(machine: Machine) -> int:
    """The bytes of a machine: as it says, or as its nodes add up."""
    if machine.memory is not None:
        return machine.memory
    known = [node.memory for node in machine.nodes if node.memory is not None]
    return sum(known) if known else _UNLIMITED


def _not_negative(amounts: Amounts) -> bool:
    for amount in amounts.values():  # noqa: SIM110 - on the way of every pod, where all() costs twice
        if amount.unscaled < 0:
            return False
    return True


@contextmanager
def _of(manager: str) -> Iterator[None]:
    """Note on errors which of the managers would not start."""
    try:
        yield
    except SettingsError as error:
        error.manager = manager
        raise


def _check_sound(pod: Pod) -> None:
    """Refuse a pod that would make a ledger wrong, with all that the API server has against it."""
    everyone = pod.everyone
    sound = pod.uid and len({one.name for one in everyone}) == len(everyone) and _not_negative(pod.overhead)
    for resources in (pod.resources, *(one.resources for one in everyone)):
        sound = sound and _not_negative(resources.requests) and _not_negative(resources.limits)
    if sound:
        return
    unknown = () if pod.uid else (Problem("metadata.uid", "Required value"),)
    raise PodError((*unknown, *validation.validation_problems(pod)))


def _check_nodes(view: KubeletView) -> None:
    """Refuse what cAdvisor makes up where a system has no NUMA nodes and does not tell its sockets."""
    unknown = [node.id for node in view.nodes if node.id < 0]
    if unknown:
        raise SettingsError(
            f"NUMA node {unknown[0]}: this machine does not tell its NUMA nodes, so nothing can be aligned"
        )


def _check_names(providers: Sequence[Provider[Any]]) -> None:
    names = [one.name for one in providers]
    if len(set(names)) < len(names):
        raise AlignError(f"each provider needs a name of its own; there are: {', '.join(names)}")
