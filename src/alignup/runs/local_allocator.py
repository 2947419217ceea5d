"""Deciding without an agent: the user's own ledger, in the directory of the runs.

The host is this machine with CPUs of their own for whoever asks for whole ones, one CPU and a little memory kept back
for everybody else, and policy best-effort; a KubeletConfiguration says it otherwise. What the groups around this
process do not leave to it is nobody's.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.cpus.options import OPTION_STAGES, CpuPolicy, CpuSettings
from alignup.align.decision import Decision
from alignup.align.errors import RestoreError, SettingsError, StateError
from alignup.align.host import Host, Settings
from alignup.align.ledger import Ledger
from alignup.align.machine import CadvisorReport, Machine
from alignup.align.memory import reserved_memory
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.providers import CpuHintProvider as CpuBook
from alignup.align.quantity import Quantity, QuantityFormat
from alignup.align.settings import FeatureGates, FeatureStage, Policy, Scope, TopologyOptions, TopologySettings
from alignup.align.workload import Amounts, Container, Pod, QoS, Resources
from alignup.align.workload.names import CPU, MEMORY
from alignup.enforce.cgroup import Cpuset
from alignup.enforce.numa_nodes import NodeMap
from alignup.runs.request import CONTAINER, RunAllocation, RunRejectedError, RunRequest
from alignup.schema import decisions, ledgers
from alignup.state.checkpoint import Checkpoint, CheckpointStore, encode_fragment
from alignup.state.fingerprint import machine_fingerprint, settings_fingerprint

if TYPE_CHECKING:
    from alignup.enforce.run_record import RunDevices

_MIB = 1 << 20
_SHARE = 32  #: of the memory, one part in so many is kept back
_MOST = 10_000  #: runs at a time
_ALPHA = "CPUManagerPolicyAlphaOptions"


@dataclass(frozen=True, slots=True)
class PolicyOverrides:
    """By what runs are judged, where something else is said than usual."""

    policy: str | None = None
    scope: str | None = None
    options: Sequence[str] = ()  #: ``name=value``, of the topology or the CPU manager's policy
    settings: Settings | None = None  #: those of a KubeletConfiguration


def restrict_memory(machine: Machine, permitted: Cpuset | None) -> Machine:
    """*machine* without the memory of nodes that are not permitted; CPUs stay, for :func:`build_host` to keep back."""
    if permitted is None or not permitted.nodes:
        return machine
    nodes = tuple(
        node if permitted.nodes >> node.id & 1 else replace(node, memory=0, hugepages=()) for node in machine.nodes
    )
    return machine if nodes == machine.nodes else replace(machine, nodes=nodes, report=_lean(machine, permitted))


def build_host(machine: Machine, rules: PolicyOverrides, *, permitted: CpuSet | None = None) -> Host:
    """An idle host; ``SettingsError`` when the rules do not go together, or with this machine."""
    settings = rules.settings or _usual(machine, permitted)
    topology = settings.topology
    options, cpu_options = _options(rules.options, settings)
    policy = Policy(rules.policy) if rules.policy else topology.policy
    topology = replace(topology, policy=policy, scope=Scope(rules.scope or topology.scope), options=options)
    cpus = replace(settings.cpus, options=cpu_options)
    return Host(machine, replace(settings, topology=topology, cpus=cpus, gates=_gates(rules.options, settings.gates)))


def build_pod(wish: RunRequest) -> Pod:
    """A run as a pod. Whole CPUs are its own, whether it says how much memory it needs or not."""
    asked = {name: Quantity.parse(text) for name, text in wish.amounts.items()}
    resources = Resources(requests=asked, limits=asked)
    return Pod(
        name=wish.name,
        namespace="run",
        uid=wish.uid,
        containers=(Container(CONTAINER, resources),),
        recorded_qos=QoS.GUARANTEED if resources.whole_cpus else None,
    )


def device_nodes(machine: Machine) -> "RunDevices":
    """Where the devices of a machine are."""
    found: dict[str, dict[str, int | None]] = {}
    for one in machine.devices:
        found.setdefault(one.resource, {})[one.id] = one.nodes
    return found


class RunLedger:
    """The ledger as it was last written down; for who has the lock."""

    def __init__(self, directory: Path, idle: Host, *, alive: Collection[str]) -> None:
        self._store = CheckpointStore(directory)
        self.host = Host(idle.machine, idle.settings)
        loaded = self._store.load()
        self.changed = False  #: whether something has to be written down
        if loaded is None:
            return
        gone = {str(piece["pod"]["uid"]) for piece in loaded.document["pods"]} - set(alive)
        self.changed = bool(gone)
        document = ledgers.without_pods(loaded.document, gone)
        self.host.ledger = _restored(document, self.host)

    def admit(self, asking: Pod) -> Decision:
        """Decide on a run, and give it what it is to have."""
        decision = self.host.admit(asking)
        self.changed |= decision.admitted
        return decision

    def release(self, uid: str) -> None:
        """A run is over."""
        self.changed |= uid in self.host.ledger.pods
        self.host.release(uid)

    def save(self) -> None:
        """Write down what has changed; ``CheckpointError`` when that cannot be."""
        if not self.changed:
            return
        ledger = self.host.ledger
        self._store.save(
            Checkpoint(
                machine=machine_fingerprint(self.host.machine),
                settings=settings_fingerprint(self.host.settings),
                crumbs=ledgers.crumbs(ledger, providers=self.host.providers),
                pods=[encode_fragment(ledgers.pod_document(ledger, uid)) for uid in ledger.pods],
            )
        )
        self.changed = False


class LocalAllocator:
    """The user's own ledger, as who decides on runs; *explain* tells people what becomes of one on a host."""

    address = ""  #: no agent's
    trouble: tuple[type[Exception], ...] = ()

    def __init__(self, directory: Path, idle: Host, *, permitted: CpuSet, explain: Callable[[Host, Pod], None]) -> None:
        self._directory = directory
        self._idle = idle
        self._permitted = permitted
        self._explain = explain
        self._opened: RunLedger | None = None

    def open(self, *, alive: Collection[str], gone: Collection[str]) -> None:
        """Take up the ledger as it stands now, without runs that are over."""
        del gone
        self._opened = RunLedger(self._directory, self._idle, alive=alive)

    @property
    def host(self) -> Host:
        """The host as the ledger has it; idle when that was not taken up."""
        return self._idle if self._opened is None else self._opened.host

    @property
    def book(self) -> RunLedger:
        """The ledger, once it is taken up."""
        if self._opened is None:
            raise StateError("the ledger has to be taken up first")
        return self._opened

    def admit(self, wish: RunRequest) -> RunAllocation:
        """Decide on a run."""
        asking, book = build_pod(wish), self.book
        decision = book.admit(asking)
        if decision.refusal is not None:
            now = Host(self._idle.machine, self._idle.settings, ledger=book.host.ledger)
            hopeless = not self._idle.decide(asking).admitted
            raise RunRejectedError(decision.refusal.reason, lambda: self._explain(now, asking), impossible=hopeless)
        return self.offer(decision)

    def offer(self, decision: Decision) -> RunAllocation:
        """What an admission gives to a run."""
        machine = self._idle.machine
        with_memory = bits.of(node.id for node in machine.nodes if node.memory is None or node.memory > 0)
        (placement,) = decisions.to_document(replace(decision, steps=()))["placements"]
        return RunAllocation(
            placement=placement,
            shared=self.shared(),
            devices=device_nodes(machine),
            node_map=NodeMap(machine.kubelet_view().node_cpus, with_memory),
            strict=decision.policy in {Policy.RESTRICTED, Policy.SINGLE_NUMA_NODE},
        )

    def shared(self) -> CpuSet:
        """The CPUs of those that have none of their own."""
        shared: CpuSet = self.host.ledger.books[CpuBook.name].shared
        return shared & self._permitted

    def release(self, uid: str) -> None:
        """A run is over."""
        self.book.release(uid)

    def keep(self) -> None:
        """Write the ledger down."""
        self.book.save()


def _restored(document: Mapping[str, Any], idle: Host) -> Ledger:
    try:
        return ledgers.from_document(document, idle.ledger, providers=idle.providers)
    except RestoreError as error:
        raise StateError(
            f"what runs that go on hold does not go with this machine and these settings: {error}; "
            "say --config and --option as for them, or wait until they end"
        ) from error


def _usual(machine: Machine, permitted: CpuSet | None) -> Settings:
    """CPUs and memory of their own, one CPU and a little memory kept back, policy best-effort."""
    view = machine.kubelet_view()
    explicit = _explicit(view.all_cpus, permitted)
    kept_cpus = Quantity(explicit.bit_count() or 1)
    cpus = CpuSettings(policy=CpuPolicy.STATIC, reservation=kept_cpus, explicit=explicit)
    reservation: Amounts = {CPU: kept_cpus}
    topology = TopologySettings(policy=Policy.BEST_EFFORT, limit_nodes=False)
    known = [node.memory for node in view.nodes if node.memory is not None]
    if len(known) < len(view.nodes) or not sum(known):
        return Settings(topology=topology, cpus=cpus, reservation=reservation, max_pods=_MOST)
    kept = max(_MIB, sum(known) // _SHARE // _MIB * _MIB)
    reservation = {**reservation, MEMORY: Quantity(kept, format=QuantityFormat.BINARY_SI)}
    return Settings(
        topology=topology,
        cpus=cpus,
        memory_policy=MemoryPolicy.STATIC,
        reserved_memory=reserved_memory.propose_reserved_memory(reservation, view),
        reservation=reservation,
        max_pods=_MOST,
    )


def _explicit(cpus: CpuSet, permitted: CpuSet | None) -> CpuSet:
    """Which CPUs are kept back: one, any, where all are permitted; else one of those, and all that are not."""
    left = cpus if permitted is None else cpus & permitted
    return 0 if left == cpus or not left else cpus & ~left | left & -left


def _lean(machine: Machine, permitted: Cpuset) -> CadvisorReport | None:
    """What the kubelet would be told, without the memory of nodes that are not permitted."""
    report = machine.report
    if report is None or report.nodes is None:
        return report
    nodes = (
        node if node.id >= 0 and permitted.nodes >> node.id & 1 else replace(node, memory=0, hugepages=())
        for node in report.nodes
    )
    return replace(report, nodes=tuple(nodes))


def _options(texts: Sequence[str], settings: Settings) -> tuple[TopologyOptions, Mapping[str, str]]:
    """The options in *settings*, with those in *texts*, each of the manager that knows it."""
    named = dict(map(_pair, texts))
    of_cpus = {name: value for name, value in named.items() if name in OPTION_STAGES}
    of_topology = {name: value for name, value in named.items() if name not in OPTION_STAGES}
    parsed = TopologyOptions.parse(of_topology, gates=settings.gates)
    options = settings.topology.options
    if "prefer-closest-numa-nodes" in of_topology:
        options = replace(options, prefer_closest=parsed.prefer_closest)
    if "max-allowable-numa-nodes" in of_topology:
        options = replace(options, max_nodes=parsed.max_nodes)
    return options, {**settings.cpus.options, **of_cpus}


def _gates(texts: Sequence[str], gates: FeatureGates) -> FeatureGates:
    """Who asks for an option by name wants it, however young it is."""
    young = any(OPTION_STAGES.get(_pair(text)[0]) is FeatureStage.ALPHA for text in texts)
    return FeatureGates({**gates.changed, _ALPHA: True}) if young else gates


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise SettingsError(f"--option {text}: write it like --option prefer-closest-numa-nodes=true")
    return name, value
