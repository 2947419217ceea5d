"""Facts about a machine that work against alignment: distances that cannot be true, and the kernel's balancing."""

from collections.abc import Iterator

from alignup.align.cpus.options import CpuPolicy
from alignup.align.machine import Distances
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.reason_codes import IMPLAUSIBLE_DISTANCES, NUMA_BALANCING
from alignup.doctor.findings import Area, Finding, note, warning
from alignup.doctor.manager_checks import ManagerInputs

LOCAL_DISTANCE = 10  #: of a NUMA node to itself, as ACPI defines it
MAX_DISTANCE = 254  #: 255 means unreachable
_CLOSEST = "prefer-closest-numa-nodes"
_TRUE = {"1", "t", "T", "TRUE", "true", "True"}


def check_machine(inputs: ManagerInputs) -> Iterator[Finding]:
    """Yield what the machine reports that is implausible or works against alignment."""
    distances = inputs.view.distances
    if distances is not None and (problems := list(_implausible(distances))):
        closest_enabled = inputs.configuration.topology_manager_policy_options.get(_CLOSEST, "false") in _TRUE
        effect = (
            f"{_CLOSEST} chooses by them"
            if closest_enabled
            else f"do not enable {_CLOSEST}, which would choose by them"
        )
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        yield (warning if closest_enabled else note)(
            Area.TOPOLOGY,
            f"the distances between NUMA nodes are implausible: {problems[0]}{more}; {effect}",
            IMPLAUSIBLE_DISTANCES,
            advice="compare them with numactl -H; a new firmware may correct them",
            where="machine",
        )
    settings = inputs.configuration
    static = settings.cpu_manager_policy == CpuPolicy.STATIC or settings.memory_manager_policy == MemoryPolicy.STATIC
    if inputs.machine.numa_balancing and static and len(inputs.view.nodes) > 1:
        yield warning(
            Area.TOPOLOGY,
            f"kernel.numa_balancing is {inputs.machine.numa_balancing}: the kernel unmaps memory to see who uses it, "
            "and moves it, although the managers place containers; that costs latency, and finds nothing to improve",
            NUMA_BALANCING,
            advice="set kernel.numa_balancing=0 in /etc/sysctl.d on nodes whose pods are aligned",
            where="machine",
        )


def _implausible(distances: Distances) -> Iterator[str]:
    for node in distances.ids:
        if (local := distances.between(node, node)) != LOCAL_DISTANCE:
            yield f"NUMA node {node} has {local} to itself, not {LOCAL_DISTANCE}"
    for a in distances.ids:
        for b in (other for other in distances.ids if other > a):
            there, back = distances.between(a, b), distances.between(b, a)
            if there != back:
                yield f"it is {there} from NUMA node {a} to {b}, and {back} back"
            elif not LOCAL_DISTANCE < there <= MAX_DISTANCE:
                usual = f"{LOCAL_DISTANCE + 1} to {MAX_DISTANCE}"
                yield f"NUMA nodes {a} and {b} have {there}, and usual are {usual}"
