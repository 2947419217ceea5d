"""The CPU provider: who gets which CPUs, who is rejected and why, what comes back."""

from dataclasses import replace

import pytest

from alignup.align import bits
from alignup.align.cpus.options import CpuOptions, CpuPolicy, CpuSettings
from alignup.align.cpus.provider import NO_HINTS, CpuProvider
from alignup.align.errors import ProviderError, SettingsError, StateError
from alignup.align.hint import HintList
from alignup.align.quantity import Quantity
from alignup.align.settings import FeatureGates, Policy
from alignup.align.workload import Pod, Resources
from alignup.machines import synthetic
from tests.align.cpus.allocation import allocate, cpu_hints
from tests.strategies_pods import amounts, container, guaranteed

#: 2 sockets, a node each, 4 cores of 2 threads each; siblings are neighbors.
VIEW = synthetic.parse("pack:2 numa:1 core:4 pu:2").kubelet_view()
#: 2 sockets of 2 nodes of 4 CPUs.
FOUR = synthetic.parse("pack:2 numa:2 core:4 pu:1").kubelet_view()
ANYWHERE = None
NODE_1 = bits.of([1])


def provider(view=VIEW, *, reserved="0", pod_level=False, kubelet_faults=False, **options) -> CpuProvider:
    return CpuProvider(
        view=view,
        policy=CpuPolicy.STATIC,
        options=CpuOptions(**options),
        reserved=bits.parse(reserved),
        pod_level=pod_level,
        kubelet_faults=kubelet_faults,
    )


def asks(name: str, cpu: str, *, sidecar=False):
    return guaranteed(name, {"cpu": cpu, "memory": "1Gi"}, sidecar=sidecar)


def pod(uid: str, *cpus: str, init=()) -> Pod:
    """A pod of containers c0, c1, … with these CPUs."""
    return Pod(name=uid, uid=uid, init=init, containers=tuple(asks(f"c{i}", cpu) for i, cpu in enumerate(cpus)))


def as_one(uid: str, cpu: str, *containers, init=()) -> Pod:
    """A pod with pod-level CPUs."""
    requests = amounts({"cpu": cpu, "memory": "8Gi"})
    return Pod(name=uid, uid=uid, init=init, containers=containers, resources=Resources(requests, requests))


def place(cpus: CpuProvider, ledger, wanted: Pod, affinity=ANYWHERE):
    """The ledger with all containers of a pod placed."""
    for each in wanted.all_containers:
        ledger, _ = allocate(cpus, ledger, wanted, each, affinity)
    return ledger


def shown(ledger) -> dict:
    return {uid: {name: bits.show(cpus) for name, cpus in held.items()} for uid, held in ledger.held.items()}


def listed(hints) -> str:
    lists = hints if isinstance(hints, HintList) else HintList.of_family(hints)
    return " ".join(bits.show(nodes) + "*" * (nodes in lists.preferred) for nodes in lists.masks)


class TestCreation:
    def test_policy_none_allocates_nothing(self):
        cpus = CpuProvider.create(VIEW, CpuSettings(), topology=Policy.RESTRICTED, gates=FeatureGates())
        ledger = cpus.initial_ledger()
        wanted = pod("p", "2")

        assert cpus.allocatable == 0
        assert cpu_hints(cpus, ledger, wanted, wanted.containers[0]) is None
        assert cpu_hints(cpus, ledger, wanted) is None
        assert allocate(cpus, ledger, wanted, wanted.containers[0], ANYWHERE) == (ledger, 0)

    @pytest.mark.parametrize(
        ("reservation", "explicit", "options", "reserved", "cores"),
        [
            pytest.param("2", "", {}, "0-1", "0-1", id="a core is taken for two CPUs"),
            pytest.param("2", "3,9", {}, "3,9", "2-3,8-9", id="the CPUs named are taken as they are"),
        ],
    )
    def test_reserved_cpus(self, reservation, explicit, options, reserved, cores):
        settings = CpuSettings(
            policy="static",
            options=options,
            reservation=Quantity.parse(reservation),
            explicit=bits.parse(explicit),
        )

        cpus = CpuProvider.create(VIEW, settings, topology=Policy.NONE, gates=FeatureGates())

        assert bits.show(cpus.reserved) == reserved
        assert bits.show(cpus.reserved_cores) == cores
        assert cpus.allocatable == VIEW.all_cpus & ~cpus.reserved

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            pytest.param({"policy": "fixed"}, 'unknown policy: "fixed"', id="the policy"),
            pytest.param(
                {"options": {"bad": ""}},
                'new static policy error: unknown CPU Manager Policy option: "bad"',
                id="an option",
            ),
        ],
    )
    def test_settings_with_which_a_kubelet_does_not_start(self, change, text):
        settings = replace(CpuSettings(policy="static", reservation=Quantity.parse("2")), **change)

        with pytest.raises(SettingsError) as rejected:
            CpuProvider.create(VIEW, settings, topology=Policy.NONE, gates=FeatureGates())

        assert str(rejected.value) == text

    def test_feature_gates_enable_pod_level_allocation(self):
        settings = CpuSettings(policy="static", reservation=Quantity.parse("2"))
        on, half = {"PodLevelResourceManagers": True}, {"PodLevelResourceManagers": True, "PodLevelResources": False}

        assert CpuProvider.create(VIEW, settings, topology=Policy.NONE, gates=FeatureGates(on)).pod_level
        assert not CpuProvider.create(VIEW, settings, topology=Policy.NONE, gates=FeatureGates(half)).pod_level


class TestStart:
    def test_all_cpus_but_strictly_reserved_ones_are_shared_at_first(self):
        assert bits.show(provider().initial_ledger().shared) == "0-15"
        assert bits.show(provider(strict_cpu_reservation=True).initial_ledger().shared) == "1-15"

    def test_a_stored_assignment_is_restored(self):
        cpus = provider()
        before = place(cpus, cpus.initial_ledger(), pod("p", "4"))

        after = cpus.restore_ledger(before.shared, before.held)

        assert replace(after, reusable=before.reusable) == before

    @pytest.mark.parametrize(
        ("shared", "held", "text"),
        [
            pytest.param(
                "0-13",
                "13-15",
                'pod: p, container: c cpuset: "13-15" overlaps with default cpuset "0-13"',
                id="a CPU both shared and owned",
            ),
            pytest.param(
                "0-13",
                "14",
                'current set of available CPUs "0-15" doesn\'t match with CPUs in state "0-14"',
                id="a CPU that is neither",
            ),
        ],
    )
    def test_inconsistent_state_is_rejected(self, shared, held, text):
        with pytest.raises(StateError) as rejected:
            provider().restore_ledger(bits.parse(shared), {"p": {"c": bits.parse(held)}})

        assert str(rejected.value) == text

    def test_a_host_starts_with_all_cpus_exclusive(self):
        cpus = provider(strict_cpu_reservation=True)
        before = place(cpus, cpus.initial_ledger(), pod("p", "15"))

        assert before.shared == 0
        assert cpus.restore_ledger(before.shared, before.held).shared == 0
        with pytest.raises(StateError, match="default cpuset cannot be empty"):
            replace(cpus, kubelet_faults=True).restore_ledger(before.shared, before.held)

    def test_stored_cpus_of_whole_pods_count_only_with_the_gate(self):
        shared, held, pod_held = bits.parse("0-11"), {"p": {"c": bits.parse("12")}}, {"p": bits.parse("12-15")}

        ledger = provider(pod_level=True).restore_ledger(shared, held, pod_held=pod_held)

        assert ledger.owned("p") == bits.parse("12-15")
        with pytest.raises(StateError, match="doesn't match"):
            provider().restore_ledger(shared, held, pod_held=pod_held)


class TestHints:
    def test_a_container_that_requests_parts_of_a_cpu_has_no_exclusive_cpus(self):
        cpus = provider()
        wanted = pod("p", "1500m")

        assert cpu_hints(cpus, cpus.initial_ledger(), wanted, wanted.containers[0]) is None
        assert cpu_hints(cpus, cpus.initial_ledger(), wanted) is None

    def test_pod_level_resources_are_ignored_without_the_gate(self):
        wanted = as_one("p", "4", asks("c", "4"))
        cpus = provider()

        assert cpu_hints(cpus, cpus.initial_ledger(), wanted, wanted.containers[0]) is None
        assert cpu_hints(cpus, cpus.initial_ledger(), wanted) is None
        assert place(cpus, cpus.initial_ledger(), wanted) == cpus.initial_ledger()

    def test_of_a_container_and_of_its_pod(self):
        cpus = provider()
        wanted = pod("p", "4", "5")

        assert listed(cpu_hints(cpus, cpus.initial_ledger(), wanted, wanted.containers[0])) == "0* 1* 0-1"
        assert listed(cpu_hints(cpus, cpus.initial_ledger(), wanted)) == "0-1*"

    def test_of_a_container_already_placed(self):
        cpus = provider()
        wanted = pod("p", "4")
        ledger = place(cpus, cpus.initial_ledger(), wanted, NODE_1)

        assert listed(cpu_hints(cpus, ledger, wanted, wanted.containers[0])) == "1* 0-1"
        assert listed(cpu_hints(cpus, ledger, wanted)) == "1* 0-1"

    def test_of_a_container_with_a_changed_request(self):
        cpus = provider()
        ledger = place(cpus, cpus.initial_ledger(), pod("p", "4"))
        changed = pod("p", "6")

        assert cpu_hints(cpus, ledger, changed, changed.containers[0]) is NO_HINTS
        assert cpu_hints(cpus, ledger, changed) is NO_HINTS

    def test_of_a_pod_of_which_a_part_is_placed(self):
        cpus = provider()
        wanted = pod("p", "4", "2")
        ledger, _ = allocate(cpus, cpus.initial_ledger(), wanted, wanted.containers[0], NODE_1)

        assert listed(cpu_hints(cpus, ledger, wanted)) == "1* 0-1"


class TestAllocation:
    def test_cpus_come_from_the_chosen_nodes_and_then_from_others(self):
        cpus = provider()

        assert shown(place(cpus, cpus.initial_ledger(), pod("p", "4"), NODE_1)) == {"p": {"c0": "8-11"}}
        assert shown(place(cpus, cpus.initial_ledger(), pod("p", "10"), NODE_1)) == {"p": {"c0": "2-3,8-15"}}

    def test_with_sockets_cpus_come_from_the_socket_first(self):
        plain, by_socket = provider(FOUR), provider(FOUR, align_by_socket=True)
        ledger = place(plain, plain.initial_ledger(), pod("q", "5"), bits.of([0, 1]))

        assert shown(place(plain, ledger, pod("p", "6"), bits.of([2])))["p"] == {"c0": "2-3,8-11"}
        assert shown(place(by_socket, ledger, pod("p", "6"), bits.of([2])))["p"] == {"c0": "8-13"}

    def test_placing_again_changes_nothing(self):
        cpus = provider()
        ledger = place(cpus, cpus.initial_ledger(), pod("p", "4"), NODE_1)

        assert place(cpus, ledger, pod("p", "4"), bits.of([0])) == ledger

    def test_cpus_of_init_containers_are_reused(self):
        cpus = provider()
        wanted = pod("p", "2", "4", init=(asks("i0", "4"), asks("side", "2", sidecar=True), asks("i1", "2")))

        ledger = place(cpus, cpus.initial_ledger(), wanted)

        assert shown(ledger) == {"p": {"i0": "2-5", "side": "2-3", "i1": "4-5", "c0": "4-5", "c1": "6-9"}}
        assert ledger.owned("p").bit_count() == 8

    def test_another_pod_ends_the_reuse(self):
        cpus = provider()
        wanted = pod("p", "4", init=(asks("i0", "4"),))
        ledger, first = allocate(cpus, cpus.initial_ledger(), wanted, wanted.init[0], ANYWHERE)
        ledger = place(cpus, ledger, pod("q", "2"))

        _, second = allocate(cpus, ledger, wanted, wanted.containers[0], ANYWHERE)

        assert not first & second

    def test_reusable_cpus_of_another_pod_are_not_reused(self):
        cpus = provider(pod_level=True)
        wanted = pod("p", "4", init=(asks("i0", "4"),))
        ledger, _ = allocate(cpus, cpus.initial_ledger(), wanted, wanted.init[0], ANYWHERE)
        ledger = ledger.take_back("p", "i0")
        ledger, other = allocate(cpus, ledger, as_one("q", "4", asks("c", "4")), None, ANYWHERE)

        ledger, mine = allocate(cpus, ledger, wanted, wanted.containers[0], ANYWHERE)

        assert not other & mine

    def test_whole_cores_or_nothing(self):
        cpus = provider(full_pcpus_only=True)

        with pytest.raises(ProviderError) as rejected:
            place(cpus, cpus.initial_ledger(), pod("p", "3"))

        assert rejected.value.reason == "SMTAlignmentError"
        assert rejected.value.message == "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"

    def test_release_frees_everything_of_a_pod(self):
        cpus = provider()
        ledger = place(cpus, cpus.initial_ledger(), pod("p", "2", "4", init=(asks("i0", "4"),)))

        assert cpus.release(ledger, "p").shared == VIEW.all_cpus
        assert cpus.release(ledger, "q") is ledger


class TestPodsAsOnePiece:
    def test_containers_get_their_shares(self):
        cpus = provider(pod_level=True)
        wanted = as_one(
            "p",
            "6",
            asks("own", "2"),
            container("sharing"),
            init=(container("first"), asks("side", "2", sidecar=True), asks("second", "4"), container("third")),
        )

        ledger, piece = allocate(cpus, cpus.initial_ledger(), wanted, None, NODE_1)

        assert bits.show(piece) == "8-13"
        assert shown(ledger)["p"] == {
            "first": "8-13",
            "side": "8-9",
            "second": "10-13",
            "third": "10-13",
            "own": "10-11",
            "sharing": "12-13",
        }
        assert bits.show(ledger.shared) == "0-7,14-15"

    @pytest.mark.parametrize(
        ("wanted", "text"),
        [
            pytest.param(
                as_one("p", "4", asks("own", "4"), container("sharing")),
                "pod rejected, sum of exclusive container cpu requests equals pod budget, "
                "leaving no cpus for shared containers",
                id="containers",
            ),
            pytest.param(
                as_one("p", "4", asks("own", "2"), init=(asks("side", "4", sidecar=True), container("first"))),
                "pod rejected, pod has shared init containers but no cpus available for them",
                id="init containers after a sidecar",
            ),
        ],
    )
    def test_shared_containers_need_a_share(self, wanted, text):
        cpus = provider(pod_level=True)

        with pytest.raises(ProviderError) as rejected:
            allocate(cpus, cpus.initial_ledger(), wanted, None, ANYWHERE)

        assert (rejected.value.reason, rejected.value.message) == ("EmptyPodSharedPoolError", text)
        assert cpu_hints(cpus, cpus.initial_ledger(), wanted) is NO_HINTS

    def test_pods_without_pod_level_resources_are_ignored(self):
        cpus = provider(pod_level=True)
        ledger = cpus.initial_ledger()

        assert allocate(cpus, ledger, pod("p", "2"), None, ANYWHERE) == (ledger, 0)
        assert allocate(cpus, ledger, as_one("p", "1500m"), None, ANYWHERE) == (ledger, 0)

    def test_a_pod_admitted_again_keeps_its_cpus(self):
        cpus = provider(pod_level=True)
        wanted = as_one("p", "4", asks("own", "2"), container("sharing"))
        ledger, piece = allocate(cpus, cpus.initial_ledger(), wanted, None, NODE_1)

        assert listed(cpu_hints(cpus, ledger, wanted)) == "1* 0-1"
        assert allocate(cpus, ledger, wanted, None, NODE_1) == (ledger, piece)

    def test_in_the_kubelet_it_loses_its_cpus(self):
        cpus = provider(pod_level=True, kubelet_faults=True)
        wanted = as_one("p", "4", asks("own", "2"), container("sharing"))
        ledger, piece = allocate(cpus, cpus.initial_ledger(), wanted, None, NODE_1)

        again, other = allocate(cpus, ledger, wanted, None, NODE_1)

        assert cpu_hints(cpus, ledger, wanted) is NO_HINTS
        assert not piece & other
        assert again.lost == piece

    def test_release(self):
        cpus = provider(pod_level=True)
        wanted = as_one("p", "4", asks("own", "2"), container("sharing"))
        ledger, _ = allocate(cpus, cpus.initial_ledger(), wanted, None, ANYWHERE)

        assert ledger.take_back("p", "own").shared == ledger.shared
        assert cpus.release(ledger, "p") == cpus.initial_ledger()
