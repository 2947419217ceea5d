"""What a kubelet 1.38 decides differently from 1.37, example by example; both answers of each are checked."""

from dataclasses import replace

import pytest

from alignup.align import bits
from alignup.align.cpus.options import CpuOptions, CpuPolicy, CpuSettings
from alignup.align.cpus.provider import CpuProvider, create_selection
from alignup.align.errors import ProviderError, StateError
from alignup.align.hint import Hint
from alignup.align.host import Host, Settings
from alignup.align.machine import Cpu, Device, KubeletView, NumaNode
from alignup.align.memory.ledger import MemoryLedger
from alignup.align.memory.reserved_memory import ReservedMemory
from alignup.align.quantity import Quantity
from alignup.align.release import find_release
from alignup.align.restart import restart
from alignup.align.settings import FeatureGates, Policy, Scope, TopologySettings
from alignup.align.workload import Pod, Resources
from alignup.machines import synthetic
from tests.align.cpus.allocation import allocate, cpu_hints
from tests.align.hosts import GPU, make_host, pod
from tests.conformance.cpu_cases import listed
from tests.strategies_pods import amounts, container, guaranteed

R37, R38 = find_release("1.37"), find_release("1.38")
POD_LEVEL = FeatureGates({"PodLevelResourceManagers": True})


def view_of(cores: list[str], *, sockets: list[int] | None = None, nodes: list[int] | None = None) -> KubeletView:
    """A machine by the CPUs of its cores; *sockets* and *nodes* are those of the cores (default: 0)."""
    cpus = [
        Cpu(cpu, core=index, socket=(sockets or [0] * len(cores))[index], node=(nodes or [0] * len(cores))[index])
        for index, core in enumerate(cores)
        for cpu in bits.members(bits.parse(core))
    ]
    return KubeletView(
        cpus=tuple(sorted(cpus, key=lambda cpu: cpu.id)),
        num_cpus=len(cpus),
        num_cores=len(cores),
        num_sockets=len({cpu.socket for cpu in cpus}),
        nodes=tuple(NumaNode(node, memory=8 << 30) for node in sorted({cpu.node or 0 for cpu in cpus})),
    )


def answers(view: KubeletView, free: str, count: int, **options: bool) -> tuple[str, str]:
    """The CPUs that kubelets 1.37 and 1.38 take; what we do for 1.38 ourselves is the same."""
    before, now, ours = (
        create_selection(view, CpuOptions(**options), release, kubelet_faults=faults).take(bits.parse(free), count)
        for release, faults in ((R37, True), (R38, True), (R38, False))
    )
    assert now == ours
    return bits.show(before), bits.show(now)


I7_14700 = view_of([f"{cpu}-{cpu + 1}" for cpu in range(0, 16, 2)] + [str(cpu) for cpu in range(16, 28)])
UNEVEN_SOCKETS = view_of(
    [str(cpu) for cpu in range(12)],
    sockets=[int(cpu > 7) for cpu in range(12)],
    nodes=[int(cpu > 7) for cpu in range(12)],
)


@pytest.mark.parametrize(
    ("view", "free", "count", "before", "now"),
    [
        pytest.param(I7_14700, "1-27", 2, "0-1", "16-17", id="i7-14700, 2 CPUs"),
        pytest.param(I7_14700, "1-27", 14, "0-1,16-27", "2-3,16-27", id="i7-14700, 14 CPUs"),
        pytest.param(UNEVEN_SOCKETS, "2-7,9-11", 8, "0-7", "2-6,9-11", id="sockets of 8 and 4 CPUs"),
    ],
)
def test_cores_and_sockets_are_whole_by_their_real_size(view, free, count, before, now):
    assert answers(view, free, count) == (before, now)


def test_chosen_combinations_are_not_overwritten():
    view = synthetic.parse("pack:8 numa:1 core:4 pu:1").kubelet_view()

    assert answers(view, "1-31", 13, distribute_cpus_across_numa=True) == ("4-10,12-14,28-30", "4-10,12-14,16-18")


FOUR_NODES = synthetic.parse("pack:4 numa:1 core:8 pu:1").kubelet_view()


@pytest.mark.parametrize(
    ("free", "mask", "count", "before", "now"),
    [
        pytest.param("0-31", [0, 1, 2, 3], 12, "0-5,8-13", "0-2,8-10,16-18,24-26", id="four nodes"),
        pytest.param("0-31", [0, 1, 2, 3], 6, "0-5", "0-1,8-9,16,24", id="a remainder"),
        pytest.param("0-31", [0, 1, 2, 3], 3, "0-2", "0-2", id="ignored: fewer CPUs than nodes"),
        pytest.param("0-23", [0, 1, 2, 3], 12, "0-5,8-13", "0-5,8-13", id="ignored: a node without free CPUs"),
    ],
)
def test_distribution_keeps_the_width_of_the_hint(free, mask, count, before, now):
    taken = []
    for release in (R37, R38):
        provider = CpuProvider(
            view=FOUR_NODES,
            policy=CpuPolicy.STATIC,
            options=CpuOptions(distribute_cpus_across_numa=True),
            kubelet_faults=True,
            kubelet_release=release,
        )
        ledger = replace(provider.initial_ledger(), shared=bits.parse(free))
        asked = Pod(name="p", uid="p", containers=(guaranteed("c", {"cpu": str(count), "memory": "1Mi"}),))
        ledger = provider.allocate(ledger, asked, asked.containers[0], affinity=Hint(bits.of(mask), preferred=True))
        taken.append(bits.show(ledger.held["p"]["c"]))

    assert taken == [before, now]


@pytest.mark.parametrize(("release", "nodes"), [(R37, 3), (R38, 4)])
def test_cpus_follow_gpus_to_all_numa_nodes(release, nodes):
    """256 CPUs and 8 GPUs on four NUMA nodes: a pod with 8 GPUs and 176 CPUs, as in kubernetes#139430."""
    machine = synthetic.parse("pack:4 numa:1(memory=64GiB) core:32 pu:2")
    gpus = tuple(Device(GPU, f"gpu-{index}", nodes=1 << index // 2) for index in range(8))
    cpus = CpuSettings(
        policy="static", options={"distribute-cpus-across-numa": "true"}, reservation=Quantity.parse("1"), explicit=1
    )
    topology = TopologySettings(policy=Policy.BEST_EFFORT)
    settings = Settings(cpus=cpus, topology=topology, release=release, kubelet_faults=True, fit_check=False)
    host = Host(replace(machine, devices=gpus), settings)

    host.admit(pod("p", cpu="176", gpu="8"))

    taken = host.ledger.cpus.owned("p")
    assert sum(1 for node_cpus in host.view.node_cpus.values() if node_cpus & taken) == nodes


def test_cpus_are_taken_from_each_core_in_turn():
    neighbors, far_apart = view_of(["0-1", "2-3", "4-5", "6-7"]), view_of(["0,4", "1,5", "2,6", "3,7"])

    assert answers(neighbors, "1-7", 5, distribute_cpus_across_cores=True) == ("1-5", "1-4,6")
    assert answers(far_apart, "0-7", 5, distribute_cpus_across_cores=True) == ("0-4", "0-4")


def test_cores_in_turn_on_four_sockets_with_four_threads_a_core():
    """The first of four sockets of 18 cores, as a reviewer of kubernetes#140766 calculated it."""
    numbers = (0, 1, 8, 9, 24, 25, 32, 33, 40, 41, 48, 49, 56, 57)
    firsts = dict(zip(numbers, (49, 50, 57, 58, 71, 72, 79, 80, 87, 88, 95, 96, 103, 104), strict=True))
    cores = {core: [first, first + 60, first + 120, first + 180] for core, first in firsts.items()}
    cores[0][0] = 0
    cores |= {
        core: [first, first + 12, first + 24, first + 37] for core, first in {64: 1, 65: 2, 72: 9, 73: 10}.items()
    }
    rest = sorted(set(range(288)) - {cpu for threads in cores.values() for cpu in threads})
    cpus = [Cpu(cpu, core=core, socket=0, node=0) for core, threads in cores.items() for cpu in threads]
    cpus += [
        Cpu(cpu, core=100 + index // 4, socket=1 + index // 72, node=1 + index // 72) for index, cpu in enumerate(rest)
    ]
    view = KubeletView(
        cpus=tuple(sorted(cpus, key=lambda cpu: cpu.id)),
        num_cpus=288,
        num_cores=72,
        num_sockets=4,
        nodes=tuple(map(NumaNode, range(4))),
    )

    assert answers(view, "0-287", 12, distribute_cpus_across_cores=True) == (
        "0-2,9-10,13-14,21-22,25-26,33",
        "0,50,57-58,71-72,79-80,87-88,95-96",
    )


def cpu_provider(cpus: int, release=R38) -> CpuProvider:
    return CpuProvider(
        view=synthetic.parse(f"pack:1 numa:1 core:{cpus} pu:1").kubelet_view(),
        policy=CpuPolicy.STATIC,
        reserved=1,
        pod_level=True,
        kubelet_faults=True,
        kubelet_release=release,
    )


def pod_of(total: int, *counts: int) -> Pod:
    """A pod with pod-level CPUs; a container c1, c2, … without CPUs shares those of the pod."""
    requests = amounts({"cpu": str(total), "memory": "8Gi"})
    containers = tuple(
        guaranteed(f"c{index}", {"cpu": str(count), "memory": "1Gi"}) if count else container(f"c{index}")
        for index, count in enumerate(counts, 1)
    )
    return Pod(name="p", uid="p", containers=containers, resources=Resources(requests, requests))


def stored(provider: CpuProvider, whole: str, **parts: str):
    held = {"p": {name: bits.parse(cpus) for name, cpus in parts.items()}} if parts else {}
    taken = bits.parse(whole)
    return replace(provider.initial_ledger(), shared=provider.view.all_cpus & ~taken, held=held, pod_held={"p": taken})


def shown(ledger) -> tuple[str, dict[str, str]]:
    return bits.show(ledger.shared), {name: bits.show(cpus) for name, cpus in ledger.held.get("p", {}).items()}


class TestPodLevelCpusAfterARestart:
    def test_a_full_node_rejected_the_pod(self):
        old, new = cpu_provider(4, R37), cpu_provider(4)
        asked = pod_of(2, 2)

        with pytest.raises(ProviderError, match="requested=2, available=1"):
            allocate(old, stored(old, "1-2", c1="1-2"), asked, None, None)
        ledger, _ = allocate(new, stored(new, "1-2", c1="1-2"), asked, None, None)

        assert shown(ledger) == ("0,3", {"c1": "1-2"})

    @pytest.mark.parametrize(("release", "shared", "cpus"), [(R37, "0,5", "3-4"), (R38, "0,3-5", "1-2")])
    def test_the_pod_moved_and_cpus_were_lost(self, release, shared, cpus):
        provider = cpu_provider(6, release)

        ledger, _ = allocate(provider, stored(provider, "1-2", c1="1-2"), pod_of(2, 2), None, None)

        assert shown(ledger) == (shared, {"c1": cpus})

    def test_a_missing_container_gets_the_rest(self):
        provider = cpu_provider(8)

        ledger, _ = allocate(provider, stored(provider, "1-4", c1="1-2"), pod_of(4, 2, 2), None, None)

        assert shown(ledger) == ("0,5-7", {"c1": "1-2", "c2": "3-4"})

    def test_stored_containers_are_kept_even_if_they_are_smaller(self):
        provider = cpu_provider(8)

        ledger, _ = allocate(provider, stored(provider, "1-4", c1="1"), pod_of(4, 2, 2), None, None)

        assert shown(ledger) == ("0,5-7", {"c1": "1", "c2": "2-3"})

    def test_sharing_containers_get_the_rest(self):
        provider = cpu_provider(8)

        ledger, _ = allocate(provider, stored(provider, "1-4", c1="1-2"), pod_of(4, 2, 0), None, None)

        assert shown(ledger) == ("0,5-7", {"c1": "1-2", "c2": "3-4"})

    def test_a_hole_places_the_pod_anew(self):
        provider = cpu_provider(8)

        ledger, _ = allocate(provider, stored(provider, "1-4", c2="2,4"), pod_of(4, 2, 2), None, None)

        assert shown(ledger) == ("0,5-7", {"c1": "1-2", "c2": "3-4"})
        assert ledger.lost == 0

    def test_a_pod_whose_cpus_are_shared_is_placed_anew(self):
        provider = cpu_provider(8)
        ledger = replace(stored(provider, "3-6", c1="3-4", c2="5-6"), shared=bits.parse("0-3,7"))

        ledger, _ = allocate(provider, ledger, pod_of(4, 2, 2), None, None)

        assert shown(ledger) == ("0,5-7", {"c1": "1-2", "c2": "3-4"})

    def test_everything_is_released_if_the_missing_containers_do_not_fit(self):
        provider = cpu_provider(8)

        with pytest.raises(ProviderError, match="requested=2, available=0") as caught:
            allocate(provider, stored(provider, "1-2", c1="1-2"), pod_of(2, 2, 2), None, None)

        assert shown(caught.value.residue) == ("0-7", {})
        assert caught.value.residue.pod_held == {}

    @pytest.mark.parametrize(("release", "shared"), [(R37, "0,4-7"), (R38, "0-7")])
    def test_containers_that_ask_for_more_than_the_pod(self, release, shared):
        provider = cpu_provider(8, release)

        with pytest.raises(ProviderError, match="requested=2, available=1") as caught:
            allocate(provider, provider.initial_ledger(), pod_of(3, 2, 2), None, None)

        assert bits.show(caught.value.residue.shared) == shared

    @pytest.mark.parametrize(("release", "shared"), [(R37, "0,4-7"), (R38, "")])
    def test_a_rejected_pod_keeps_cpus(self, release, shared):
        host = make_host(scope=Scope.POD, memory=False, gates=POD_LEVEL, release=release, kubelet_faults=True)

        residue = host.decide(pod_of(3, 2, 2)).residue

        assert (bits.show(residue.cpus.shared) if residue else "") == shared

    @pytest.mark.parametrize(
        ("whole", "parts", "count", "masks"),
        [
            pytest.param("1-4", {"c1": "1"}, 4, [[0]], id="the stored set decides"),
            pytest.param("1-3", {"c1": "1-2", "c2": "3"}, 4, [], id="another size is impossible"),
            pytest.param("1-4", {"c2": "2,4"}, 4, [[0]], id="stale CPUs count as free"),
        ],
    )
    def test_hints(self, whole, parts, count, masks):
        provider = cpu_provider(5)
        hints = cpu_hints(provider, stored(provider, whole, **parts), pod_of(count, 2, 2))

        assert [mask for mask, _ in listed(hints) or ()] == masks

    def test_a_state_file_in_which_cpus_were_lost_stops_the_start(self):
        """As 1.37 leaves it behind when a pod with pod-level resources is placed twice."""
        provider = cpu_provider(6)

        with pytest.raises(StateError, match=r'current set of available CPUs "0-5" doesn\'t match with CPUs in state'):
            provider.restore_ledger(bits.parse("0,5"), {"p": {"c1": 0b11000}}, pod_held={"p": 0b11000})


@pytest.mark.parametrize(("release", "message"), [(R37, "preferred hint violates NUMA node allocation"), (R38, "")])
def test_pod_level_memory_after_a_restart(release, message):
    """Two NUMA nodes of 10 GiB; a pod of 8 GiB on one of them, with containers of 4 GiB each."""
    machine = synthetic.parse("pack:2 numa:1(memory=10GiB) core:4 pu:1")
    reserved = Quantity.parse("1Gi")
    settings = Settings(
        topology=TopologySettings(policy=Policy.RESTRICTED, scope=Scope.POD),
        memory_policy="Static",
        reserved_memory=(ReservedMemory(1, {"memory": reserved}),),
        reservation={"memory": reserved},
        gates=POD_LEVEL,
        release=release,
        kubelet_faults=True,
    )
    requests = amounts({"cpu": "2", "memory": "8Gi"})
    containers = tuple(guaranteed(name, {"cpu": "1", "memory": "4Gi"}) for name in ("a", "b"))
    asked = Pod(name="p", uid="p", containers=containers, resources=Resources(requests, requests))
    host = Host(machine, settings)
    assert host.admit(asked).admitted

    changes = restart(host, host.ledger, [asked]).changes

    assert [message in change.message for change in changes.values()] == ([True] if message else [])


def test_a_kernel_that_takes_more_memory_stops_the_start():
    """As before: the option memory-drift-tolerance (KEP-6232) is planned, and in no prerelease."""
    stored, present = (
        MemoryLedger.of_machine([NumaNode(0, size)], {0: {}}) for size in (65_839_165_440, 65_839_153_152)
    )

    with pytest.raises(StateError, match="the expected machine state is different from the real one"):
        stored.restored(present)
