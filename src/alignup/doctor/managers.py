"""What stops the kubelet's topology, CPU and memory managers.

A kubelet reports only the first error, and of several wrong options a random one. Here each option is checked on its
own and then all valid ones together, so that one run finds everything.
"""

from collections.abc import Iterator
from functools import partial

from alignup.align import bits
from alignup.align.cpus.options import OPTION_STAGES, CpuOptions, CpuPolicy
from alignup.align.cpus.provider import select_reserved_cpus
from alignup.align.errors import SettingsError
from alignup.align.explain.sentences import format_quantity
from alignup.align.memory import reserved_memory
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.settings import TOPOLOGY_OPTIONS, Policy, TopologyOptions, TopologySettings
from alignup.align.workload.names import CPU, MEMORY
from alignup.doctor.findings import Area, Finding, error, note, ok
from alignup.doctor.manager_inputs import OPTION_GATES, ManagerInputs, error_message
from alignup.kube.documents import to_yaml

_STATIC_ERROR = "new static policy error: "


def check_managers(inputs: ManagerInputs) -> Iterator[Finding]:
    yield from _check_topology_manager(inputs)
    yield from _check_cpu_manager(inputs)
    yield from _check_memory_manager(inputs)


def reserved_memory_yaml(inputs: ManagerInputs) -> str:
    """A valid ``reservedMemory`` as YAML; empty if there is none."""
    try:
        entries = reserved_memory.propose_reserved_memory(inputs.reservations.reservation, inputs.view)
    except SettingsError:
        return ""
    rows = [
        {"numaNode": entry.node, "limits": {name: str(amount) for name, amount in entry.limits.items()}}
        for entry in entries
    ]
    return to_yaml({"reservedMemory": rows})


def _stops(  # noqa: PLR0913 - the parts of a finding
    area: Area, stage: str, message: str, advice: str, *, where: str, paste: str = "", reason: str = ""
) -> Finding:
    summary = f"the kubelet stops at {stage}{reason}"
    return error(area, summary, kubelet_message=message, advice=advice, where=where, paste=paste)


_topology_error = partial(_stops, Area.TOPOLOGY, "topology_manager")
_cpu_error = partial(_stops, Area.CPUS, "cpu_manager")
_memory_error = partial(_stops, Area.MEMORY, "memory_manager")


def _check_topology_manager(inputs: ManagerInputs) -> Iterator[Finding]:
    configuration = inputs.configuration
    if inputs.policy is None:
        return
    if inputs.policy is Policy.NONE:
        yield ok(Area.TOPOLOGY, "policy none: nothing is aligned")
        return
    options, errors = dict(configuration.topology_manager_policy_options), []
    for name, value in configuration.topology_manager_policy_options.items():
        if message := error_message(partial(TopologyOptions.parse, {name: value}, gates=inputs.gates)):
            del options[name]
            valid = (f"{option} ({known.values})" for option, known in TOPOLOGY_OPTIONS.items())
            advice = f"valid options are {' and '.join(valid)}"
            errors.append(_topology_error(message, advice, where=f"topologyManagerPolicyOptions[{name}]"))
    settings = TopologySettings(policy=inputs.policy, options=TopologyOptions.parse(options, gates=inputs.gates))
    errors += _check_machine(inputs, settings)
    yield from errors
    if not errors:
        dropped = inputs.has_dropped("topologyManagerScope")
        scope = "" if dropped else f", scope {configuration.topology_manager_scope}"
        yield ok(Area.TOPOLOGY, f"starts with policy {inputs.policy}{scope}")


def _check_machine(inputs: ManagerInputs, settings: TopologySettings) -> Iterator[Finding]:
    nodes, has_distances = len(inputs.view.nodes), inputs.view.distances is not None
    if message := error_message(lambda: settings.check_machine(nodes=0, distances=has_distances)):
        yield _topology_error(
            message,
            "remove prefer-closest-numa-nodes",
            where="topologyManagerPolicyOptions[prefer-closest-numa-nodes]",
            reason=": the machine does not report the distances between its NUMA nodes",
        )
    if message := error_message(lambda: settings.check_machine(nodes=nodes, distances=True)):
        options = {**inputs.configuration.topology_manager_policy_options, "max-allowable-numa-nodes": str(nodes)}
        yield _topology_error(
            message,
            "raise the limit; admission then takes longer, since the kubelet tries every combination of nodes",
            where="topologyManagerPolicyOptions[max-allowable-numa-nodes]",
            reason=f": the machine has {nodes} NUMA nodes",
            paste=to_yaml({"topologyManagerPolicyOptions": options}),
        )


def _check_cpu_manager(inputs: ManagerInputs) -> Iterator[Finding]:
    if inputs.has_dropped("cpuManagerPolicy"):
        return
    settings = inputs.cpu_settings
    if settings.policy not in set(CpuPolicy):
        message = error_message(lambda: CpuPolicy.parse(settings.policy))
        yield _cpu_error(message, "use none or static", where="cpuManagerPolicy")
        return
    if settings.policy == CpuPolicy.NONE:
        if message := error_message(settings.check_none):
            advice = "remove the options, or set cpuManagerPolicy to static"
            yield _cpu_error(message, advice, where="cpuManagerPolicyOptions")
        else:
            yield ok(Area.CPUS, "policy none: no container gets exclusive CPUs")
        return
    errors = [*_check_cpu_options(inputs), *_check_reserved_cpus(inputs)]
    yield from errors
    provider = inputs.cpu_provider()
    if provider and not errors:
        reserved, available = bits.show(provider.reserved), provider.allocatable.bit_count()
        yield ok(Area.CPUS, f"starts with policy static: CPUs {reserved} reserved, {available} for exclusive use")


def _check_cpu_options(inputs: ManagerInputs) -> Iterator[Finding]:
    """Each option on its own, then the valid ones together, as if the gates they need were enabled."""
    for name, value in inputs.configuration.cpu_manager_policy_options.items():
        if message := error_message(partial(CpuOptions.parse, {name: value}, gates=inputs.gates)):
            yield _cpu_option_error(name, message, inputs)
    parse = partial(CpuOptions.parse, inputs.valid_options, gates=inputs.option_gates)
    if message := error_message(parse):
        yield _cpu_error(_STATIC_ERROR + message, "remove one of the two", where="cpuManagerPolicyOptions")
        return
    options, view = parse(), inputs.view
    for policy, sockets, advice in (
        (inputs.policy, 0, "remove align-by-socket, or set topologyManagerPolicy to restricted or best-effort"),
        (Policy.NONE, view.num_sockets, "remove align-by-socket: this machine has more sockets than NUMA nodes"),
    ):
        check = partial(options.check_machine, policy or Policy.NONE, sockets=sockets, nodes=view.num_nodes)
        if message := error_message(check):
            yield _cpu_error(_STATIC_ERROR + message, advice, where="cpuManagerPolicyOptions[align-by-socket]")


def _cpu_option_error(name: str, message: str, inputs: ManagerInputs) -> Finding:
    where = f"cpuManagerPolicyOptions[{name}]"
    stage, paste = OPTION_STAGES.get(name), ""
    gate = OPTION_GATES.get(stage) if stage else None
    if gate and "not enabled" in message:
        advice = f"enable the feature gate {gate}"
        paste = to_yaml({"featureGates": {**inputs.configuration.feature_gates, gate: True}})
    else:
        advice = "use true or false, in quotes" if stage else f"valid options are {', '.join(OPTION_STAGES)}"
    return _cpu_error(_STATIC_ERROR + message, advice, where=where, paste=paste)


def _check_reserved_cpus(inputs: ManagerInputs) -> Iterator[Finding]:
    """The static policy needs at least one reserved CPU."""
    settings, view = inputs.cpu_settings, inputs.view
    if view.discovery_error:
        yield _cpu_error(view.discovery_error, "use a machine description that lists its CPUs", where="")
        return
    if not inputs.knows_cpus:
        return
    if message := error_message(settings.reserved_count):
        cgroups = inputs.configuration.system_reserved_cgroup or inputs.configuration.kube_reserved_cgroup
        first_core = view.core_cpus[min(view.core_cpus)]
        by_count = {"systemReserved": {**inputs.configuration.system_reserved, CPU: str(first_core.bit_count())}}
        paste = by_count if cgroups else {"reservedSystemCPUs": bits.show(first_core)}
        advice = "reserve CPUs for system daemons, such as the first core"
        yield _cpu_error(message, advice, where="systemReserved[cpu]", paste=to_yaml(paste))
        return
    count = settings.reserved_count()
    select = partial(select_reserved_cpus, view, CpuOptions(), count=count, explicit=settings.explicit)
    if message := error_message(select):
        advice = f"reserve at most the {view.num_cpus} CPUs of the machine"
        yield _cpu_error(_STATIC_ERROR + message, advice, where="systemReserved[cpu]")


def _check_memory_manager(inputs: ManagerInputs) -> Iterator[Finding]:
    if inputs.has_dropped("memoryManagerPolicy"):
        return
    name = inputs.configuration.memory_manager_policy
    if message := error_message(lambda: MemoryPolicy.parse(name)):
        yield _memory_error(message, "use None or Static", where="memoryManagerPolicy")
        return
    if name == MemoryPolicy.NONE:
        yield ok(Area.MEMORY, "policy None: memory is not pinned")
        return
    if not inputs.knows_memory_reservation:
        return
    proposal = reserved_memory_yaml(inputs)
    if inputs.has_dropped("reservedMemory"):
        if proposal:
            summary = "this reservedMemory would be valid in place of the rejected one"
            yield note(Area.MEMORY, summary, where="reservedMemory", paste=proposal)
        return
    entries, total = inputs.configuration.reserved_memory, inputs.reservations.reservation
    if message := error_message(lambda: reserved_memory.reserved_by_node(entries, total, nodes=inputs.view.nodes)):
        yield _memory_error(message, _memory_advice(inputs, proposal), where="reservedMemory", paste=proposal)
        return
    if (reserved := inputs.reserved_memory()) is not None:
        shares = ", ".join(
            f"{format_quantity(sizes[MEMORY])} on NUMA node {node}"
            for node, sizes in reserved.items()
            if sizes.get(MEMORY)
        )
        yield ok(Area.MEMORY, f"starts with policy Static: {shares} reserved")


def _memory_advice(inputs: ManagerInputs, proposal: str) -> str:
    total = inputs.reservations.reservation
    if proposal:
        return (
            f"make reservedMemory add up to {total[MEMORY].canonical()}, the sum of systemReserved, kubeReserved "
            "and evictionHard"
        )
    if MEMORY not in total:
        return "reserve memory with systemReserved.memory, kubeReserved.memory or evictionHard[memory.available]"
    if not any(node.memory for node in inputs.view.nodes):
        return "use a machine description that includes the memory of its NUMA nodes"
    return error_message(partial(reserved_memory.propose_reserved_memory, total, inputs.view))
