"""A host: one machine under one configuration, with a ledger of everything allocated.

    decision = host.decide(pod)     # pure: changes nothing
    host.apply(decision)
    decision = host.admit(pod)      # decide, and apply if admitted
    decision = host.predict(pod)    # as a kubelet, with every choice of devices that it may make
    host.release(pod.uid)

Pods are expected as the API server passes them on (``align.workload.validation.accept``). A pod that would corrupt the
ledger, by a missing uid, a duplicate container name or a negative amount, raises ``PodError``.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from alignup.align.admit import AdmissionRules, build_placements, decide
from alignup.align.bits import NodeSet
from alignup.align.cpus.options import CpuSettings
from alignup.align.cpus.provider import CpuProvider
from alignup.align.decision import Decision, Outcome
from alignup.align.devices.choices import DeviceChooser
from alignup.align.devices.demanded_locality import locality_demands
from alignup.align.devices.plugin_rules import PluginRule, PluginRules
from alignup.align.devices.provider import DeviceProvider, PreferenceAnswers
from alignup.align.display import Pictured, Row
from alignup.align.errors import AlignError, PodError, Problem, SettingsError, StateError
from alignup.align.fit import NodeAllocatable, UsedResources
from alignup.align.hint import Provider
from alignup.align.ledger import Ledger
from alignup.align.machine import Device, KubeletView, Machine
from alignup.align.memory import reserved_memory
from alignup.align.memory.provider import MemoryPolicy, MemoryProvider, MemorySettings
from alignup.align.memory.reserved_memory import ReservedMemory
from alignup.align.merging.merge import MergeRule
from alignup.align.prediction import predict
from alignup.align.quantity import Quantity, read_amounts
from alignup.align.release import NEWEST, ClaimRule, Release
from alignup.align.settings import FeatureGates, Policy, TopologySettings
from alignup.align.workload import Amounts, Container, Pod, Resources, validation
from alignup.align.workload.names import CPU, DEVICES_ANNOTATION, MEMORY, is_extended

#: Field of :class:`Settings` → its type.
_FIELD_TYPES = {"topology": TopologySettings, "cpus": CpuSettings, "release": Release, "gates": FeatureGates}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    topology: TopologySettings = field(default_factory=TopologySettings)
    cpus: CpuSettings = field(default_factory=CpuSettings)
    memory_policy: str = MemoryPolicy.NONE
    reserved_memory: tuple[ReservedMemory, ...] = ()
    reservation: Amounts = field(default_factory=dict)  #: kube-reserved, system-reserved and the eviction threshold
    gates: FeatureGates = field(default_factory=FeatureGates)  #: of the ``release``
    release: Release = NEWEST  #: of the kubelet
    preferred_allocation: frozenset[str] = frozenset()  #: resources whose plugin supports GetPreferredAllocation
    plugin_rules: Mapping[str, PluginRule] = field(default_factory=dict)  #: resource → how its plugin chooses
    #: whether near devices are chosen, and demands on them count: for hosts that act themselves, not for predictions
    near_devices: bool = False
    fit_check: bool = True  #: whether a pod must also fit the host as a whole
    max_pods: int = 110
    pod_policy_annotations: bool = False  #: whether pods can choose policy and scope by annotation
    #: copy the defects of the kubelet that its recorded answers depend on (``docs/why/differences.md``)
    kubelet_faults: bool = False

    def __post_init__(self) -> None:
        for name, expected_type in _FIELD_TYPES.items():
            if not isinstance(value := getattr(self, name), expected_type):
                raise TypeError(f"Settings.{name} needs a {expected_type.__name__}, not {type(value).__name__}")
        read_amounts(self, "reservation")
        reservation = {name: amount.under(self.release) for name, amount in self.reservation.items()}
        object.__setattr__(self, "reservation", reservation)
        if self.gates.release is not self.release:
            object.__setattr__(self, "gates", replace(self.gates, release=self.release))


_DEFAULTS = Settings()


class Host(Pictured):
    """One machine, its settings, and its ledger.

    With *ledger*, the host continues where another host with this machine and these settings stopped; a provider of
    *others* that is not in it starts with its initial ledger. A *starting* host is a kubelet that starts: it knows what
    the containers that run hold, but has admitted no pod yet. ``SettingsError`` if a kubelet would not start.
    """

    def __init__(
        self,
        machine: Machine,
        settings: Settings = _DEFAULTS,
        *,
        ledger: Ledger | None = None,
        others: Sequence[Provider[Any]] = (),
        starting: bool = False,
    ) -> None:
        if not isinstance(machine, Machine) or not isinstance(settings, Settings):
            raise _type_error(machine, settings)
        self.machine = machine
        self.settings = settings
        self.starting = starting
        self.view = view = machine.kubelet_view()
        gates = settings.gates
        with _errors_of("topology"):
            _check_topology(settings, view)
        self.devices = DeviceProvider(
            view.all_nodes,
            machine.devices,
            settings.preferred_allocation,
            kubelet_release=settings.release,
            claims=settings.release.allocates_unclaimed_devices and gates.on("DRAExtendedResource"),
            hints_claimed_requests=settings.kubelet_faults,
            starting=starting,
            plugin_rules=PluginRules(settings.plugin_rules, machine=machine),
            machine=machine if settings.near_devices else None,
        )
        with _errors_of("cpu"):
            self.cpus = CpuProvider.create(
                view,
                settings.cpus,
                # Pods with annotations may choose the strictest policy, which must be compatible with the options.
                topology=Policy.SINGLE_NUMA_NODE if settings.pod_policy_annotations else settings.topology.policy,
                gates=gates,
                kubelet_faults=settings.kubelet_faults,
            )
        with _errors_of("memory"):
            policy = MemoryPolicy(settings.memory_policy)
            reserved_sizes: Mapping[int, Mapping[str, int]] = {}
            if policy is MemoryPolicy.STATIC:
                reservation = settings.reserved_memory, settings.reservation
                reserved_sizes = reserved_memory.reserved_by_node(*reservation, nodes=view.nodes)
        memory_settings = MemorySettings.of_gates(policy, gates, kubelet_faults=settings.kubelet_faults)
        self.memory = MemoryProvider(memory_settings, view.nodes, reserved_sizes)
        self.others = tuple(others)
        self.providers: tuple[Provider[Any], ...] = (self.devices, self.cpus, self.memory, *self.others)
        names = [provider.name for provider in self.providers]
        if len(set(names)) < len(names):
            raise AlignError(f"provider names must be unique: {', '.join(names)}")
        self.rules = AdmissionRules(
            topology=settings.topology,
            nodes=view.all_nodes,
            distances=view.distances if settings.topology.options.prefer_closest else None,
            pod_level=gates.on("PodLevelResourceManagers") and gates.on("PodLevelResources"),
            allocatable=node_allocatable(machine, settings) if settings.fit_check else None,
            pod_policy_annotations=settings.pod_policy_annotations,
        )
        self.ledger = self.initial_ledger() if ledger is None else self._adopt(ledger)

    def _adopt(self, ledger: Ledger) -> Ledger:
        """Return the ledger with which this host continues another host."""
        if foreign := ledger.others.keys() - {provider.name for provider in self.providers}:
            names = ", ".join(sorted(foreign))
            raise StateError(f"the ledger belongs to another host: unknown provider {names}")
        if new := [provider for provider in self.others if provider.name not in ledger.others]:
            initial_ledgers = {provider.name: provider.initial_ledger() for provider in new}
            ledger = replace(ledger, others={**ledger.others, **initial_ledgers})
        return replace(ledger, pods={}, used=UsedResources()) if self.starting else ledger

    def __repr__(self) -> str:
        return f"<Host: {self.settings.topology.policy}, {len(self.ledger.pods)} pods, {self.machine!r}>"

    def to_rows(self) -> list[Row]:
        """Return one row per container of the admitted pods, with what it holds."""
        return [
            {"pod": self.ledger.pod_name(uid)} | placement.to_row()
            for uid, admitted_pod in self.ledger.pods.items()
            for placement in build_placements(admitted_pod.pod, admitted_pod.hints, self.ledger, self.providers)
        ]

    def copy(self) -> "Host":
        """Return a host with the same machine, settings, providers and ledger, on which other pods can be tried."""
        return copy(self)

    def with_ledger(self, ledger: Ledger) -> "Host":
        """Return a host with the same machine, settings and providers that continues with *ledger*."""
        host = copy(self)
        host.ledger = ledger
        return host

    def without_pods(self, uids: Iterable[str]) -> "Host":
        """Return the host as it would be without these pods."""
        host = copy(self)
        for uid in uids:
            host.release(uid)
        return host

    def initial_ledger(self) -> Ledger:
        """Return a ledger in which nothing is allocated."""
        return Ledger(
            cpus=self.cpus.initial_ledger(),
            memory=self.memory.initial_ledger(),
            devices=self.devices.initial_ledger(),
            others={provider.name: provider.initial_ledger() for provider in self.others},
        )

    def decide(
        self, pod: Pod, answers: PreferenceAnswers | None = None, *, chosen: tuple[NodeSet, ...] = ()
    ) -> Decision:
        """Decide on *pod*; *answers* are the answers to the ``preference_requests`` of an earlier decision.

        *chosen* are the NUMA nodes that the first merges choose, where that is random.
        """
        providers = (replace(self.devices, answers=answers), *self.providers[1:]) if answers else self.providers
        rules = replace(self.rules, chosen=chosen) if chosen else self.rules
        return decide(self._evaluated(pod), self.ledger, providers=providers, rules=rules)

    def possible_decisions(self, pod: Pod, chosen: tuple[NodeSet, ...] = ()) -> Iterator[Decision]:
        """Yield a decision for each set of NUMA nodes that a kubelet may choose at random; usually there is one."""
        decision = self.decide(pod, chosen=chosen)
        yield decision
        sets = tuple(step.hint.nodes or 0 for step in decision.steps)
        for number, step in enumerate(decision.steps):
            if step.rule is MergeRule.RANDOM and number >= len(chosen):
                for nodes in step.runners_up:
                    yield from self.possible_decisions(pod, (*sets[:number], nodes))

    def decide_with(self, pod: Pod, chooser: DeviceChooser) -> Decision:
        """Decide on *pod*; *chooser* takes one of the possible choices of devices for each container."""
        providers = (replace(self.devices, chooser=chooser), *self.providers[1:])
        return decide(self._evaluated(pod), self.ledger, providers=providers, rules=self.rules)

    def predict(self, pod: Pod) -> Decision:
        """Decide on *pod* as a kubelet does, with all choices of devices that it and its plugins may make."""
        return predict(self._evaluated(pod), self.ledger, providers=self.providers, rules=self.rules)

    def _evaluated(self, pod: Pod) -> Pod:
        """Return *pod* as the kubelet's release reads it; ``PodError`` if it is invalid or would corrupt the ledger."""
        check_pod(pod)
        if self.settings.near_devices and DEVICES_ANNOTATION in pod.annotations:
            locality_demands(pod, strict=False)  # raises if it is malformed
        if pod.depends_on_release:
            pod = validation.evaluated_by(pod, self.settings.release)
        if pod.has_pod_level_resources and not self.settings.gates.on("PodLevelResources"):
            pod = pod.without_pod_level_resources()
        return pod

    def without_faults(self) -> "Host":
        """Return this host as it would be without the defects of the kubelet: it does the safe thing."""
        settings = replace(self.settings, kubelet_faults=False)
        return Host(self.machine, settings, ledger=self.ledger, others=self.others)

    def during_allocation(self, *uids: str) -> "Host":
        """Return the host at a moment when device plugins still answer for these pods, and PodResources is asked.

        Up to 1.37, a kubelet forgets the devices of unfinished allocations then, and may give them to another pod.
        """
        if self.settings.release.remembers_unfinished_devices or not self.settings.kubelet_faults:
            return self
        devices = self.ledger.devices
        for uid in uids:
            devices = self.devices.release(devices, uid)
        return self.with_ledger(replace(self.ledger, devices=devices))

    def missing_devices(self, pod: Pod) -> tuple[str, ...]:
        """Return the extended resources that *pod* requests and neither a device plugin nor a DeviceClass provides.

        A scheduler finds no node for such a pod. A kubelet that gets it anyway ignores these requests, and so does
        :meth:`decide`.
        """
        resources = self.ledger.devices.handled
        missing_resources: set[str] = set()
        for container in pod.all_containers:
            for name, amount in container.resources.requests.items():
                is_served = name in resources or name in pod.class_resources
                is_served = is_served or (container.name, name) in pod.claimed_requests
                if not is_served and is_extended(name) and amount.milli():
                    missing_resources.add(name)
        return tuple(sorted(missing_resources)) if missing_resources else ()

    def apply(self, decision: Decision) -> None:
        """Apply an admission; ``StateError`` if the ledger has changed since the decision."""
        if not isinstance(decision, Decision):
            raise TypeError(f"apply needs a Decision, not {type(decision).__name__}; host.decide returns one")
        if decision.outcome is not Outcome.ADMITTED or decision.after is None:
            raise StateError(f"cannot apply the decision: pod {decision.uid} was not admitted")
        if decision.before is not self.ledger:
            raise StateError(f"the ledger has changed since the decision on pod {decision.uid}; decide again")
        self.ledger = decision.after

    def decide_without_plugins(self, pod: Pod, answers: PreferenceAnswers | None = None) -> Decision:
        """Decide on *pod* where device plugins cannot be asked: each is assumed to prefer its first devices."""
        answers_so_far = dict(answers or {})
        while (decision := self.decide(pod, answers_so_far)).preference_requests:
            answers_so_far.update((request, request.first_devices()) for request in decision.preference_requests)
        return decision

    def admit(self, pod: Pod, answers: PreferenceAnswers | None = None) -> Decision:
        """Decide on *pod*, and apply the decision if it is admitted."""
        decision = self.decide(pod, answers)
        if decision.admitted:
            self.apply(decision)
        else:
            self.leave_residue(decision)
        return decision

    def leave_residue(self, decision: Decision) -> None:
        """Do as the kubelet does after a rejection: it takes back what the containers got later, or not at its start.

        The memory of a group of NUMA nodes may be spread over it otherwise then. A host without defects does nothing.
        """
        if decision.residue is not None and self.settings.kubelet_faults:
            residue = decision.residue
            self.ledger = residue if self.starting else self.without_holdings(residue, decision.uid)

    def start_container(self, uid: str, container: str) -> None:
        """Record that a container of an admitted pod starts, so the init containers before it have ended."""
        if uid not in self.ledger.pods:
            raise StateError(f"there is no pod {uid}")
        pod = self.ledger.pods[uid].pod
        started_container = next((candidate for candidate in pod.all_containers if candidate.name == container), None)
        if started_container is None:
            raise StateError(f"pod {uid} has no container {container}")
        ledgers = self.ledger.by_provider()
        self.ledger = self.ledger.with_providers(
            {
                provider.name: provider.start_container(ledgers[provider.name], pod, started_container)
                for provider in self.providers
            }
        )

    def release(self, uid: str) -> None:
        """Release everything the pod holds; does nothing for an unknown pod."""
        if uid in self.ledger.pods:
            self.ledger = self.ledger.without_pod(uid, self._take_back(self.ledger, uid))

    def without_holdings(self, ledger: Ledger, uid: str) -> Ledger:
        """Return *ledger* without what the containers of a pod hold, whether or not it was admitted."""
        return ledger.with_providers(self._take_back(ledger, uid))

    def _take_back(self, ledger: Ledger, uid: str) -> dict[str, Any]:
        ledgers = ledger.by_provider()
        for provider in self.providers:
            ledgers[provider.name] = provider.release(ledgers[provider.name], uid)
        return ledgers

    def update_devices(self, resource: str, devices: Iterable[Device]) -> None:
        """Replace the devices of *resource*, as its plugin reports them."""
        devices = tuple(devices)
        wrong = sorted({device.resource for device in devices} - {resource})
        if wrong:
            raise StateError(f"devices of {', '.join(wrong)} were reported as {resource}")
        device_ledger = self.ledger.devices.announce(
            resource, devices, preferred_allocation=resource in self.settings.preferred_allocation
        )
        self.ledger = replace(self.ledger, devices=device_ledger)


def node_allocatable(machine: Machine, settings: Settings) -> NodeAllocatable:
    """Return the capacity of a host less its reservation; devices are counted elsewhere."""
    view = machine.kubelet_view()
    huge: dict[str, int] = {}
    for node in view.nodes:
        for pages in node.hugepages:
            huge[pages.resource] = huge.get(pages.resource, 0) + pages.bytes
    capacity = dict(huge)
    memory = [node.memory for node in machine.nodes] if machine.memory is None else [machine.memory]
    if sizes := [size for size in memory if size is not None]:
        capacity[MEMORY] = sum(sizes) - sum(huge.values())
    reserved_amounts = settings.reservation
    allocatable: dict[str, int] = {}
    for name, size in capacity.items():
        whole, reservation = Quantity.of(size), reserved_amounts.get(name, Quantity.ZERO)
        # An overflow wraps, as in the kubelet: an eviction threshold of NaN % is a reservation of -2**63.
        allocatable[name] = (whole - reservation).value() if whole > reservation else 0
    cpus = 1000 * view.num_cpus - (reserved_amounts[CPU].milli() if CPU in reserved_amounts else 0)
    return NodeAllocatable(
        milli_cpu=max(0, cpus),
        memory=allocatable.pop(MEMORY, _UNLIMITED),
        ephemeral_storage=_UNLIMITED,
        pods=settings.max_pods,
        scalars=allocatable,
        claim_rule=settings.release.claim_rule if settings.gates.on("DRAExtendedResource") else ClaimRule.COUNTED,
    )


_UNLIMITED = (1 << 63) - 1  #: an unknown capacity rejects no pod; the capacity of disks is always unknown


def _check_topology(settings: Settings, view: KubeletView) -> None:
    settings.topology.check_machine(nodes=len(view.nodes), distances=view.distances is not None)
    if settings.topology.policy is not Policy.NONE or settings.pod_policy_annotations:
        unknown_nodes = [node.id for node in view.nodes if node.id < 0]
        if unknown_nodes:  # made up by cAdvisor on a system without NUMA nodes and known sockets
            raise SettingsError(
                f"NUMA node {unknown_nodes[0]}: this machine reports no NUMA nodes, so nothing can be aligned"
            )


@contextmanager
def _errors_of(manager: str) -> Iterator[None]:
    """Add the name of the kubelet's manager to settings errors."""
    try:
        yield
    except SettingsError as error:
        error.manager = manager
        raise


def _type_error(machine: object, settings: object) -> TypeError:
    argument, type_ = (settings, Settings) if isinstance(machine, Machine) else (machine, Machine)
    name = type_.__name__
    reader = f"alignup.load_{name.lower()} reads one from a file"
    return TypeError(f"Host needs a {name}, not {type(argument).__name__}; {reader}")


def _pod_type_error(pod: Pod) -> TypeError | None:
    """Return an error about the first part of *pod* with a wrong type; ``None`` if all types are right."""

    def mismatch(field: str, value: object, expected_type: type) -> TypeError | None:
        wrong = not isinstance(value, expected_type)
        message = f"pod {pod.name}: {field} needs a {expected_type.__name__}, not {type(value).__name__}"
        return TypeError(message) if wrong else None

    def mismatches() -> Iterator[TypeError | None]:
        for name in ("init", "containers"):
            yield mismatch(name, getattr(pod, name), tuple)
            for index, container in enumerate(getattr(pod, name)):
                yield mismatch(f"{name}[{index}]", container, Container)
                yield mismatch(f"{name}[{index}].resources", container.resources, Resources)
        yield mismatch("resources", pod.resources, Resources)

    return next(filter(None, mismatches()), None)


def check_pod(pod: Pod) -> None:
    """Raise ``PodError`` if *pod* would corrupt a ledger."""
    if not isinstance(pod, Pod):
        raise TypeError(f"a decision needs a Pod, not {type(pod).__name__}; alignup.load_pods reads pods from files")
    try:
        consistent = pod.is_consistent
    except (AttributeError, TypeError) as error:
        raise _pod_type_error(pod) or error from error
    if not pod.uid or not consistent:
        problems_of_uid = () if pod.uid else (Problem("metadata.uid", "Required value"),)
        raise PodError((*problems_of_uid, *validation.validation_problems(pod)))
