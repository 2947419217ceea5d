"""The CPU provider: who gets which CPUs, who is rejected and why, what comes back."""

from dataclasses import replace

import pytest

from alignup.align import bits
from alignup.align.cpus.options import CpuOptions, CpuPolicy, CpuSettings
from alignup.align.cpus.provider import NO_HINTS, CpuProvider
from alignup.align.errors import ProviderError, StateError
from alignup.align.hint import HintList
from alignup.align.quantity import Quantity
from alignup.align.settings import FeatureGates, Policy
from alignup.align.workload import Pod, Resources
from alignup.machines import synthetic
from tests.align.cpus.allocation import allocate, cpu_hints
from tests.strategies_pods import amounts, container, guaranteed

#: 2 sockets, a node each, 4 cores of 2 threads each; siblings are neighbors.
VIEW = synthetic.parse("pack:2 numa:1 core:4 pu:2").kubelet_view()
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

    def test_feature_gates_enable_pod_level_allocation(self):
        settings = CpuSettings(policy="static", reservation=Quantity.parse("2"))
        on, half = {"PodLevelResourceManagers": True}, {"PodLevelResourceManagers": True, "PodLevelResources": False}

        assert CpuProvider.create(VIEW, settings, topology=Policy.NONE, gates=FeatureGates(on)).pod_level
        assert not CpuProvider.create(VIEW, settings, topology=Policy.NONE, gates=FeatureGates(half)).pod_level


class TestStart:
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
    def test_of_a_container_with_a_changed_request(self):
        cpus = provider()
        ledger = place(cpus, cpus.initial_ledger(), pod("p", "4"))
        changed = pod("p", "6")

        assert cpu_hints(cpus, ledger, changed, changed.containers[0]) is NO_HINTS
        assert cpu_hints(cpus, ledger, changed) is NO_HINTS


class TestAllocation:
    def test_cpus_of_init_containers_are_reused(self):
        cpus = provider()
        wanted = pod("p", "2", "4", init=(asks("i0", "4"), asks("side", "2", sidecar=True), asks("i1", "2")))

        ledger = place(cpus, cpus.initial_ledger(), wanted)

        assert shown(ledger) == {"p": {"i0": "2-5", "side": "2-3", "i1": "4-5", "c0": "4-5", "c1": "6-9"}}
        assert ledger.owned("p").bit_count() == 8


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
