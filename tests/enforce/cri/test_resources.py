"""What containers and pods are held to, as the kubelet works it out."""

from dataclasses import replace

import pytest
from hypothesis import given

from alignup.align.workload import Container, Pod, QoS, Resources
from alignup.align.workload.validation import apply_defaults
from alignup.enforce.cri.resources import (
    CgroupResources,
    NodeLimits,
    container_resources,
    milli_to_quota,
    milli_to_shares,
    oom_score_adj,
    page_name,
    pod_cgroup_resources,
    shares_to_weight,
)
from tests.strategies_pods import amounts, container, guaranteed, pods

GIB = 1 << 30
MIB = 1 << 20
GROUND = NodeLimits(memory=10 * GIB, page_sizes=(2 * MIB, GIB))
NO_PAGES = {"2MB": 0, "1GB": 0}


def pod(*containers: Container, init: tuple[Container, ...] = (), own: Resources | None = None, **more) -> Pod:
    return Pod(name="p", uid="u", containers=containers, init=init, resources=own or Resources(), **more)


@pytest.mark.parametrize(
    ("milli", "expected"),
    [
        pytest.param(0, 2, id="nothing asked for still runs"),
        pytest.param(1, 2, id="too little to be counted"),
        pytest.param(100, 102, id="rounded down"),
        pytest.param(1000, 1024, id="one CPU"),
        pytest.param(256_000, 262_144, id="the most there is"),
        pytest.param(10**9, 262_144, id="more than there is"),
    ],
)
def test_shares(milli, expected):
    assert milli_to_shares(milli) == expected


@pytest.mark.parametrize(
    ("milli", "expected"),
    [
        pytest.param(0, 0, id="no limit"),
        pytest.param(1, 1000, id="at least a millisecond"),
        pytest.param(10, 1000, id="a hundredth of a CPU"),
        pytest.param(1500, 150_000, id="one and a half CPUs"),
    ],
)
def test_quota(milli, expected):
    assert milli_to_quota(milli) == expected


@pytest.mark.parametrize(
    ("said", "expected"), [(2, 1), (102, 4), (512, 20), (1024, 39), (2048, 79), (262_144, 10_000), (300_000, 10_000)]
)
def test_shares_as_version_2_counts_them(said, expected):
    assert shares_to_weight(said) == expected


@pytest.mark.parametrize(
    ("size", "name"), [(64 << 10, "64KB"), (2 * MIB, "2MB"), (32 * MIB, "32MB"), (GIB, "1GB"), (16 * GIB, "16GB")]
)
def test_sizes_of_pages_are_called_as_the_kernel_calls_them(size, name):
    assert page_name(size) == name


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        pytest.param(guaranteed("a", {"cpu": "2", "memory": "1Gi"}), (2048, 200_000, GIB), id="requests are limits"),
        pytest.param(container("a", {}, {"cpu": "500m"}), (512, 50_000, 0), id="a limit stands for a request"),
        pytest.param(
            container("a", {"cpu": "0"}, {"cpu": "500m"}), (2, 50_000, 0), id="a request of nothing is one too"
        ),
        pytest.param(container("a", {"cpu": "250m", "memory": "1Gi"}), (256, 0, 0), id="only requests"),
        pytest.param(container("a"), (2, 0, 0), id="nothing at all"),
    ],
)
def test_what_a_container_is_held_to(made, expected):
    held = container_resources(pod(made), made, node_limits=GROUND)

    assert (held.cpu_shares, held.cpu_quota, held.memory_limit) == expected
    assert held.cpu_period == 100_000
    assert held.hugepages == NO_PAGES


def test_a_container_with_cpus_of_its_own_is_not_made_to_wait_for_them():
    made = guaranteed("a", {"cpu": "2", "memory": "1Gi"})

    held = container_resources(pod(made), made, node_limits=GROUND, exclusive=True, cpus=0b1100, nodes=0b10)

    assert (held.cpus, held.nodes, held.cpu_quota, held.cpu_shares) == (0b1100, 0b10, -1, 2048)


def test_limits_of_cpu_time_can_be_held_over_another_period():
    made = guaranteed("a", {"cpu": "1500m", "memory": "1Gi"})
    ground = replace(GROUND, period=10_000)

    of_container, of_pod = (
        container_resources(pod(made), made, node_limits=ground),
        pod_cgroup_resources(pod(made), node_limits=ground),
    )

    assert (of_container.cpu_quota, of_container.cpu_period) == (15_000, 10_000)
    assert (of_pod.cpu_quota, of_pod.cpu_period) == (15_000, 10_000)


@pytest.mark.parametrize("exclusive", [False, True])
def test_limits_of_cpu_time_need_not_be_held(exclusive):
    made = guaranteed("a", {"cpu": "2", "memory": "1Gi"})
    ground = replace(GROUND, quota=False)

    of_container = container_resources(pod(made), made, node_limits=ground, exclusive=exclusive)
    of_pod = pod_cgroup_resources(pod(made), node_limits=ground, exclusive=exclusive)

    assert (of_container.cpu_quota, of_container.cpu_period, of_container.cpu_shares) == (0, 0, 2048)
    assert (of_pod.cpu_quota, of_pod.memory_limit) == (-1, GIB)


@pytest.mark.parametrize("made", [container("a"), guaranteed("a", {"cpu": "2", "memory": "1Gi"})])
def test_a_pod_of_any_class_may_have_so_many_processes(made):
    assert pod_cgroup_resources(pod(made), node_limits=replace(GROUND, pids_limit=100)).pids_limit == 100


def test_processes_may_be_killed_one_by_one():
    made = container("a")

    held = container_resources(pod(made), made, node_limits=replace(GROUND, oom_kill_group=False))

    assert "memory.oom.group" not in held.unified


def test_a_container_without_limits_is_held_to_those_of_its_pod():
    own = Resources(amounts({"cpu": "1"}), amounts({"cpu": "3", "memory": "2Gi", "hugepages-2Mi": "8Mi"}))
    first, second = container("a"), container("b", {}, {"cpu": "1", "hugepages-2Mi": "4Mi"})
    both = pod(first, second, own=own)

    of_first, of_second = (container_resources(both, one, node_limits=GROUND) for one in (first, second))

    assert (of_first.cpu_shares, of_first.cpu_quota, of_first.memory_limit) == (3072, 300_000, 2 * GIB)
    assert (of_second.cpu_shares, of_second.cpu_quota, of_second.memory_limit) == (1024, 100_000, 2 * GIB)
    assert (of_first.hugepages["2MB"], of_second.hugepages["2MB"]) == (8 * MIB, 4 * MIB)


def test_huge_pages_are_limited_for_every_size_the_kernel_knows_and_no_other():
    made = guaranteed("a", {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "64Mi", "hugepages-64Ki": "1Mi"})

    assert container_resources(pod(made), made, node_limits=GROUND).hugepages == {"2MB": 64 * MIB, "1GB": 0}
    assert pod_cgroup_resources(pod(made), node_limits=GROUND).hugepages == {"2MB": 64 * MIB, "1GB": 0}


@pytest.mark.parametrize(
    ("ground", "unified", "swap"),
    [
        pytest.param(
            GROUND, {"memory.oom.group": "1", "memory.min": "0", "memory.low": "0"}, 0, id="version 2 without swap"
        ),
        pytest.param(
            replace(GROUND, swap=True),
            {"memory.oom.group": "1", "memory.min": "0", "memory.low": "0", "memory.swap.max": "0"},
            0,
            id="version 2 with swap, of which there is none for pods",
        ),
        pytest.param(replace(GROUND, unified=False), {}, 0, id="version 1 without swap"),
        pytest.param(
            replace(GROUND, unified=False, swap=True), {}, GIB, id="version 1 with swap, which counts as memory"
        ),
    ],
)
def test_what_the_versions_of_groups_are_told(ground, unified, swap):
    made = guaranteed("a", {"cpu": "1", "memory": "1Gi"})

    held = container_resources(pod(made), made, node_limits=ground)

    assert (held.unified, held.memory_swap_limit) == (unified, swap)


TENTH = container("tenth", {"memory": "1Gi"})
LITTLE = container("little", {"memory": "100Mi"})
ALL = container("all", {"memory": "10Gi"})
NOTHING = container("nothing", {"cpu": "1"})
SIDE = container("side", {"memory": "100Mi"}, sidecar=True)


@pytest.mark.parametrize(
    ("made", "of", "expected"),
    [
        pytest.param(pod(guaranteed("a", {"cpu": "1", "memory": "1Gi"})), "a", -997, id="Guaranteed pods are last"),
        pytest.param(pod(container("a")), "a", 1000, id="BestEffort pods are first"),
        pytest.param(pod(TENTH), "tenth", 900, id="a tenth of the memory is a tenth back"),
        pytest.param(pod(LITTLE), "little", 991, id="part of a step counts as none"),
        pytest.param(pod(ALL), "all", 3, id="never as safe as Guaranteed"),
        pytest.param(pod(NOTHING), "nothing", 999, id="never as exposed as BestEffort"),
        pytest.param(pod(container("a"), priority=2_000_001_000), "a", -997, id="a node lives on its critical pods"),
        pytest.param(pod(container("a"), priority=2_000_000_000), "a", 1000, id="a cluster's critical pods are others"),
        pytest.param(pod(TENTH, init=(SIDE,)), "side", 900, id="a sidecar is not killed before whom it serves"),
        pytest.param(pod(TENTH, NOTHING, init=(SIDE,)), "side", 991, id="unless that one asked for less"),
        pytest.param(
            pod(TENTH, init=(replace(SIDE, restartable=False),)), "side", 991, id="an init container serves nobody"
        ),
        pytest.param(
            pod(TENTH, NOTHING, own=Resources(amounts({"memory": "3Gi"}))),
            "tenth",
            800,
            id="what the pod asked for beyond its containers is theirs in equal parts",
        ),
        pytest.param(
            pod(NOTHING, own=Resources(amounts({"memory": "1Gi"}))), "nothing", 900, id="which may be all there is"
        ),
    ],
)
def test_who_is_killed_first_when_memory_runs_out(made, of, expected):
    (found,) = (one for one in made.everyone if one.name == of)

    assert oom_score_adj(made, found, memory=GROUND.memory) == expected


@pytest.mark.parametrize(
    ("made", "exclusive", "expected"),
    [
        pytest.param(
            pod(guaranteed("a", {"cpu": "1", "memory": "1Gi"}), guaranteed("b", {"cpu": "500m", "memory": "1Gi"})),
            False,
            CgroupResources(cpu_shares=1536, cpu_quota=150_000, cpu_period=100_000, memory_limit=2 * GIB),
            id="a Guaranteed pod is held to the sum",
        ),
        pytest.param(
            pod(guaranteed("a", {"cpu": "1", "memory": "1Gi"})),
            True,
            CgroupResources(cpu_shares=1024, cpu_quota=-1, cpu_period=100_000, memory_limit=GIB),
            id="with CPUs of its own it is not made to wait",
        ),
        pytest.param(
            pod(container("a")), False, CgroupResources(cpu_shares=2), id="a BestEffort pod gets what is left"
        ),
        pytest.param(
            pod(container("a", {"cpu": "1"}, {"cpu": "2", "memory": "1Gi"}), container("b", {}, {"memory": "1Gi"})),
            False,
            CgroupResources(cpu_shares=1024, memory_limit=2 * GIB),
            id="of a Burstable pod only what everybody has a limit for is limited",
        ),
        pytest.param(
            pod(container("a", {"cpu": "1"}), own=Resources({}, amounts({"cpu": "2", "memory": "1Gi"}))),
            False,
            CgroupResources(cpu_shares=1024, cpu_quota=200_000, cpu_period=100_000, memory_limit=GIB),
            id="limits of the pod as a whole count for all",
        ),
        pytest.param(
            pod(
                container("a", {}, {"cpu": "1", "memory": "1Gi"}),
                init=(container("i", {}, {"cpu": "3", "memory": "1Gi"}),),
                overhead=amounts({"cpu": "250m", "memory": "64Mi"}),
            ),
            False,
            CgroupResources(cpu_shares=256, cpu_quota=325_000, cpu_period=100_000, memory_limit=GIB + 64 * MIB),
            id="the largest init container and the overhead count too",
        ),
    ],
)
def test_what_a_pod_as_a_whole_is_held_to(made, exclusive, expected):
    held = pod_cgroup_resources(made, node_limits=GROUND, exclusive=exclusive)

    assert held == replace(expected, hugepages=NO_PAGES)


@given(pods())
def test_no_container_is_held_to_more_than_its_pod(made):
    filled = apply_defaults(made)
    whole = pod_cgroup_resources(filled, node_limits=GROUND)

    for one in filled.everyone:
        held = container_resources(filled, one, node_limits=GROUND)
        assert 2 <= held.cpu_shares <= 262_144
        assert -997 <= held.oom_score_adj <= 1000
        assert (held.oom_score_adj == 1000) is (filled.qos is QoS.BEST_EFFORT)
        if whole.memory_limit:
            assert 0 < held.memory_limit <= whole.memory_limit
        if whole.cpu_quota > 0:
            assert 0 < held.cpu_quota <= max(whole.cpu_quota, 1000)
