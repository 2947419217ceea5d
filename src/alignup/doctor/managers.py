"""What the kubelet's managers have against a configuration on a machine: each is asked, and each about everything.

A kubelet reports the first thing wrong, of several wrong options a random one. Here every option is looked at by
itself, then all that are good together, so that one look is enough.
"""

from collections.abc import Iterator
from functools import partial

from alignup.align import bits
from alignup.align.cpus.options import OPTION_STAGES, CpuOptions, CpuPolicy
from alignup.align.cpus.provider import select_reserved_cpus as reserve_cpus
from alignup.align.errors import SettingsError
from alignup.align.memory import reserved_memory
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.quantity import Quantity, QuantityFormat
from alignup.align.settings import Policy, TopologyOptions, TopologySettings
from alignup.align.workload.names import CPU, MEMORY
from alignup.doctor.findings import Area, Finding, error, note, ok
from alignup.doctor.manager_inputs import OPTION_GATES, ManagerInputs, error_message
from alignup.kube.yaml_output import to_yaml

_STATIC = "new static policy error: "


def check_managers(inquiry: ManagerInputs) -> Iterator[Finding]:
    """What the topology manager, the CPU manager and the memory manager say, one after the other."""
    yield from _topology(inquiry)
    yield from _cpus(inquiry)
    yield from _memory(inquiry)


def reserved_memory_yaml(inquiry: ManagerInputs) -> str:
    """A ``reservedMemory`` that adds up, as YAML; empty where there is none."""
    try:
        entries = reserved_memory.propose_reserved_memory(inquiry.told.reservation, inquiry.view)
    except SettingsError:
        return ""
    return to_yaml(
        {
            "reservedMemory": [
                {"numaNode": one.node, "limits": {name: str(amount) for name, amount in one.limits.items()}}
                for one in entries
            ]
        }
    )


def _topology(inquiry: ManagerInputs) -> Iterator[Finding]:
    found = inquiry.configuration
    if inquiry.policy is None:
        return
    if inquiry.policy is Policy.NONE:
        yield ok(Area.TOPOLOGY, "policy none: nothing is aligned")
        return
    options, refused = dict(found.topology_manager_policy_options), []
    for name, value in found.topology_manager_policy_options.items():
        said = error_message(partial(TopologyOptions.parse, {name: value}, gates=inquiry.gates))
        if said:
            del options[name]
            refused.append(_topology_option(name, said))
    settings = TopologySettings(policy=inquiry.policy, options=TopologyOptions.parse(options, gates=inquiry.gates))
    refused += _too_many(inquiry, settings)
    yield from refused
    if not refused:
        scope = "" if inquiry.reading.has_dropped("topologyManagerScope") else f", scope {found.topology_manager_scope}"
        yield ok(Area.TOPOLOGY, f"it starts: policy {inquiry.policy}{scope}")


def _topology_option(name: str, said: str) -> Finding:
    return error(
        Area.TOPOLOGY,
        "the kubelet stops at topology_manager",
        said=said,
        advice="the options are prefer-closest-numa-nodes (true or false) and max-allowable-numa-nodes (8 or more)",
        where=f"topologyManagerPolicyOptions[{name}]",
    )


def _too_many(inquiry: ManagerInputs, settings: TopologySettings) -> Iterator[Finding]:
    """The machine has no distances, or too many NUMA nodes."""
    nodes, known = len(inquiry.view.nodes), inquiry.view.distances is not None
    if said := error_message(lambda: settings.check_machine(nodes=0, distances=known)):
        yield error(
            Area.TOPOLOGY,
            "the kubelet stops at topology_manager: the machine does not tell the distances of its NUMA nodes",
            said=said,
            advice="leave out prefer-closest-numa-nodes",
            where="topologyManagerPolicyOptions[prefer-closest-numa-nodes]",
        )
    if said := error_message(lambda: settings.check_machine(nodes=nodes, distances=True)):
        options = {**inquiry.configuration.topology_manager_policy_options, "max-allowable-numa-nodes": str(nodes)}
        yield error(
            Area.TOPOLOGY,
            f"the kubelet stops at topology_manager: the machine has {nodes} NUMA nodes",
            said=said,
            advice="allow as many; admission then takes longer, since every combination of them is tried",
            where="topologyManagerPolicyOptions[max-allowable-numa-nodes]",
            paste=to_yaml({"topologyManagerPolicyOptions": options}),
        )


def _cpus(inquiry: ManagerInputs) -> Iterator[Finding]:
    """The policy, its options one by one and together, and the CPUs that are reserved."""
    if inquiry.reading.has_dropped("cpuManagerPolicy"):
        return
    settings = inquiry.cpu_settings
    if settings.policy not in set(CpuPolicy):
        said = error_message(lambda: CpuPolicy.parse(settings.policy))
        yield _no_cpus(said, "write none or static", where="cpuManagerPolicy")
        return
    if settings.policy == CpuPolicy.NONE:
        said = error_message(settings.check_none)
        advice = "leave the options out, or set cpuManagerPolicy to static"
        yield (
            _no_cpus(said, advice, where="cpuManagerPolicyOptions")
            if said
            else ok(Area.CPUS, "policy none: no container owns CPUs")
        )
        return
    refused = [*_options(inquiry), *_reserved(inquiry)]
    yield from refused
    provider = inquiry.cpu_provider()
    if provider and not refused:
        reserved, room = bits.show(provider.reserved), provider.allocatable.bit_count()
        yield ok(Area.CPUS, f"it starts: policy static, CPUs {reserved} reserved, {room} for containers to own")


def _no_cpus(said: str, advice: str, *, where: str, paste: str = "") -> Finding:
    return error(Area.CPUS, "the kubelet stops at cpu_manager", said=said, advice=advice, where=where, paste=paste)


def _options(inquiry: ManagerInputs) -> Iterator[Finding]:
    """Each option by itself, then those that are right together, gates they need taken as turned on."""
    right, opened = inquiry.valid_options, inquiry.opened
    for name, value in inquiry.configuration.cpu_manager_policy_options.items():
        said = error_message(partial(CpuOptions.parse, {name: value}, gates=inquiry.gates))
        if said:
            yield _option(name, said, inquiry)
    if said := error_message(partial(CpuOptions.parse, right, gates=opened)):
        yield _no_cpus(_STATIC + said, "leave one of the two out", where="cpuManagerPolicyOptions")
        return
    options, view = CpuOptions.parse(right, gates=opened), inquiry.view
    for policy, sockets, advice in (
        (inquiry.policy, 0, "leave out align-by-socket, or choose topologyManagerPolicy restricted or best-effort"),
        (Policy.NONE, view.num_sockets, "leave out align-by-socket: this machine has more sockets than NUMA nodes"),
    ):
        check = partial(options.check_machine, policy or Policy.NONE, sockets=sockets, nodes=view.num_nodes)
        if said := error_message(check):
            yield _no_cpus(_STATIC + said, advice, where="cpuManagerPolicyOptions[align-by-socket]")


def _option(name: str, said: str, inquiry: ManagerInputs) -> Finding:
    """What to do about one option."""
    where = f"cpuManagerPolicyOptions[{name}]"
    gate = OPTION_GATES.get(OPTION_STAGES[name]) if name in OPTION_STAGES else None
    if gate and "not enabled" in said:
        paste = to_yaml({"featureGates": {**inquiry.configuration.feature_gates, gate: True}})
        return _no_cpus(_STATIC + said, f"turn on the feature gate {gate}", where=where, paste=paste)
    advice = (
        "write true or false, in quotes" if name in OPTION_STAGES else f"the options are {', '.join(OPTION_STAGES)}"
    )
    return _no_cpus(_STATIC + said, advice, where=where)


def _reserved(inquiry: ManagerInputs) -> Iterator[Finding]:
    """Whether the static policy has CPUs to keep from containers."""
    settings, view = inquiry.cpu_settings, inquiry.view
    if view.discovery_error:
        yield _no_cpus(view.discovery_error, "give a machine that tells its CPUs", where="")
        return
    if not inquiry.knows_cpu_reservation:
        return
    if said := error_message(settings.reserved_count):
        cgroups = inquiry.configuration.system_reserved_cgroup or inquiry.configuration.kube_reserved_cgroup
        first = view.core_cpus[min(view.core_cpus)]
        by_number = {"systemReserved": {**inquiry.configuration.system_reserved, CPU: str(first.bit_count())}}
        paste = by_number if cgroups else {"reservedSystemCPUs": bits.show(first)}
        advice = "reserve CPUs for the system, such as its first core"
        yield _no_cpus(said, advice, where="systemReserved[cpu]", paste=to_yaml(paste))
        return
    count = settings.reserved_count()
    said = error_message(lambda: reserve_cpus(view, CpuOptions(), count=count, explicit=settings.explicit))
    if said:
        advice = f"reserve at most the {view.num_cpus} CPUs there are"
        yield _no_cpus(_STATIC + said, advice, where="systemReserved[cpu]")


def _memory(inquiry: ManagerInputs) -> Iterator[Finding]:
    """The policy, and whether ``reservedMemory`` adds up."""
    if inquiry.reading.has_dropped("memoryManagerPolicy"):
        return
    name = inquiry.configuration.memory_manager_policy
    if said := error_message(lambda: MemoryPolicy.parse(name)):
        yield _no_memory(said, "write None or Static", where="memoryManagerPolicy")
        return
    if name == MemoryPolicy.NONE:
        yield ok(Area.MEMORY, "policy None: no container has memory of its own")
        return
    if not inquiry.knows_memory_reservation:
        return
    kept = inquiry.configuration.reserved_memory
    said = error_message(
        lambda: reserved_memory.reserved_by_node(kept, inquiry.told.reservation, nodes=inquiry.view.nodes)
    )
    if inquiry.reading.has_dropped("reservedMemory"):
        yield from _instead(inquiry)
    elif said:
        yield _no_memory(said, _memory_advice(inquiry), where="reservedMemory", paste=reserved_memory_yaml(inquiry))
    else:
        yield from _fitting(inquiry)


def _no_memory(said: str, advice: str, *, where: str, paste: str = "") -> Finding:
    return error(Area.MEMORY, "the kubelet stops at memory_manager", said=said, advice=advice, where=where, paste=paste)


def _memory_advice(inquiry: ManagerInputs) -> str:
    """What to do where ``reservedMemory`` does not add up."""
    if reserved_memory_yaml(inquiry):
        total = inquiry.told.reservation[MEMORY].canonical()
        return f"reserve what adds up to {total}: systemReserved, kubeReserved and evictionHard together"
    if MEMORY not in inquiry.told.reservation:
        return "reserve memory: systemReserved.memory, kubeReserved.memory or evictionHard[memory.available]"
    if not any(node.memory for node in inquiry.view.nodes):
        return "the machine does not say how much memory its NUMA nodes have; give one that does"
    return error_message(partial(reserved_memory.propose_reserved_memory, inquiry.told.reservation, inquiry.view))


def _instead(inquiry: ManagerInputs) -> Iterator[Finding]:
    """What could stand where ``reservedMemory`` was refused already."""
    if paste := reserved_memory_yaml(inquiry):
        yield note(
            Area.MEMORY,
            "this reservedMemory would be taken in place of the one that was refused",
            where="reservedMemory",
            paste=paste,
        )


def _fitting(inquiry: ManagerInputs) -> Iterator[Finding]:
    """It adds up; but is there so much on each node?"""
    kept = inquiry.reserved_memory()
    if kept is None:
        return
    shares = ", ".join(
        f"{Quantity.of(sizes[MEMORY], QuantityFormat.BINARY_SI).canonical()} on NUMA node {node}"
        for node, sizes in kept.items()
        if sizes.get(MEMORY)
    )
    yield ok(Area.MEMORY, f"it starts: policy Static, {shares} reserved")
