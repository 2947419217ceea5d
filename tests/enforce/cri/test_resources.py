"""The limits of containers and pods, computed as the kubelet does."""

from dataclasses import replace

import pytest
from hypothesis import given

from alignup.align.workload import Container, Pod, QoS, Resources
from alignup.align.workload.validation import apply_defaults
from alignup.run.cri.resources import (
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
NODE_LIMITS = NodeLimits(memory=10 * GIB, page_sizes=(2 * MIB, GIB))
NO_PAGES = {"2MB": 0, "1GB": 0}


def pod(*containers: Container, init: tuple[Container, ...] = (), own: Resources | None = None, **more) -> Pod:
    return Pod(name="p", uid="u", containers=containers, init=init, resources=own or Resources(), **more)


@pytest.mark.parametrize(
    ("milli", "expected"),
    [
        pytest.param(0, 2, id="no request"),
        pytest.param(1, 2, id="below the minimum"),
        pytest.param(100, 102, id="rounded down"),
        pytest.param(1000, 1024, id="one CPU"),
        pytest.param(256_000, 262_144, id="the maximum"),
        pytest.param(10**9, 262_144, id="above the maximum"),
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
    ("shares", "expected"), [(2, 1), (102, 4), (512, 20), (1024, 39), (2048, 79), (262_144, 10_000), (300_000, 10_000)]
)
def test_weights(shares, expected):
    assert shares_to_weight(shares) == expected


@pytest.mark.parametrize(
    ("size", "name"), [(64 << 10, "64KB"), (2 * MIB, "2MB"), (32 * MIB, "32MB"), (GIB, "1GB"), (16 * GIB, "16GB")]
)
def test_page_sizes_have_the_names_of_the_kernel(size, name):
    assert page_name(size) == name


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        pytest.param(guaranteed("a", {"cpu": "2", "memory": "1Gi"}), (2048, 200_000, GIB), id="Guaranteed"),
        pytest.param(container("a", {}, {"cpu": "500m"}), (512, 50_000, 0), id="a limit without a request"),
        pytest.param(container("a", {"cpu": "0"}, {"cpu": "500m"}), (2, 50_000, 0), id="a request of zero"),
        pytest.param(container("a", {"cpu": "250m", "memory": "1Gi"}), (256, 0, 0), id="only requests"),
        pytest.param(container("a"), (2, 0, 0), id="empty"),
    ],
)
def test_container_limits(made, expected):
    resources = container_resources(pod(made), made, node_limits=NODE_LIMITS)

    assert (resources.cpu_shares, resources.cpu_quota, resources.memory_limit) == expected
    assert resources.cpu_period == 100_000
    assert resources.hugepages == NO_PAGES


def test_a_container_with_exclusive_cpus_has_no_quota():
    made = guaranteed("a", {"cpu": "2", "memory": "1Gi"})

    resources = container_resources(pod(made), made, node_limits=NODE_LIMITS, exclusive=True, cpus=0b1100, nodes=0b10)

    assert (resources.cpus, resources.nodes, resources.cpu_quota, resources.cpu_shares) == (0b1100, 0b10, -1, 2048)


def test_the_cfs_period_is_configurable():
    made = guaranteed("a", {"cpu": "1500m", "memory": "1Gi"})
    node_limits = replace(NODE_LIMITS, period=10_000)

    for_container, for_pod = (
        container_resources(pod(made), made, node_limits=node_limits),
        pod_cgroup_resources(pod(made), node_limits=node_limits),
    )

    assert (for_container.cpu_quota, for_container.cpu_period) == (15_000, 10_000)
    assert (for_pod.cpu_quota, for_pod.cpu_period) == (15_000, 10_000)


@pytest.mark.parametrize("exclusive", [False, True])
def test_cpu_limits_may_be_disabled(exclusive):
    made = guaranteed("a", {"cpu": "2", "memory": "1Gi"})
    node_limits = replace(NODE_LIMITS, quota=False)

    for_container = container_resources(pod(made), made, node_limits=node_limits, exclusive=exclusive)
    for_pod = pod_cgroup_resources(pod(made), node_limits=node_limits, exclusive=exclusive)

    assert (for_container.cpu_quota, for_container.cpu_period, for_container.cpu_shares) == (0, 0, 2048)
    assert (for_pod.cpu_quota, for_pod.memory_limit) == (-1, GIB)


@pytest.mark.parametrize("made", [container("a"), guaranteed("a", {"cpu": "2", "memory": "1Gi"})])
def test_the_pids_limit_applies_to_every_qos_class(made):
    assert pod_cgroup_resources(pod(made), node_limits=replace(NODE_LIMITS, pids_limit=100)).pids_limit == 100


def test_oom_kills_may_be_limited_to_one_process():
    made = container("a")

    resources = container_resources(pod(made), made, node_limits=replace(NODE_LIMITS, oom_kill_group=False))

    assert "memory.oom.group" not in resources.unified


def test_a_container_without_limits_gets_those_of_its_pod():
    own = Resources(amounts({"cpu": "1"}), amounts({"cpu": "3", "memory": "2Gi", "hugepages-2Mi": "8Mi"}))
    first, second = container("a"), container("b", {}, {"cpu": "1", "hugepages-2Mi": "4Mi"})
    both = pod(first, second, own=own)

    of_first, of_second = (container_resources(both, one, node_limits=NODE_LIMITS) for one in (first, second))

    assert (of_first.cpu_shares, of_first.cpu_quota, of_first.memory_limit) == (3072, 300_000, 2 * GIB)
    assert (of_second.cpu_shares, of_second.cpu_quota, of_second.memory_limit) == (1024, 100_000, 2 * GIB)
    assert (of_first.hugepages["2MB"], of_second.hugepages["2MB"]) == (8 * MIB, 4 * MIB)


def test_huge_pages_are_limited_for_exactly_the_sizes_of_the_kernel():
    made = guaranteed("a", {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "64Mi", "hugepages-64Ki": "1Mi"})

    assert container_resources(pod(made), made, node_limits=NODE_LIMITS).hugepages == {"2MB": 64 * MIB, "1GB": 0}
    assert pod_cgroup_resources(pod(made), node_limits=NODE_LIMITS).hugepages == {"2MB": 64 * MIB, "1GB": 0}


@pytest.mark.parametrize(
    ("node_limits", "unified", "swap"),
    [
        pytest.param(
            NODE_LIMITS, {"memory.oom.group": "1", "memory.min": "0", "memory.low": "0"}, 0, id="version 2 without swap"
        ),
        pytest.param(
            replace(NODE_LIMITS, swap=True),
            {"memory.oom.group": "1", "memory.min": "0", "memory.low": "0", "memory.swap.max": "0"},
            0,
            id="version 2 with swap, which pods may not use",
        ),
        pytest.param(replace(NODE_LIMITS, unified=False), {}, 0, id="version 1 without swap"),
        pytest.param(
            replace(NODE_LIMITS, unified=False, swap=True), {}, GIB, id="version 1 with swap, which counts as memory"
        ),
    ],
)
def test_settings_depend_on_the_cgroup_version(node_limits, unified, swap):
    made = guaranteed("a", {"cpu": "1", "memory": "1Gi"})

    resources = container_resources(pod(made), made, node_limits=node_limits)

    assert (resources.unified, resources.memory_swap_limit) == (unified, swap)


TENTH = container("tenth", {"memory": "1Gi"})
LITTLE = container("little", {"memory": "100Mi"})
ALL = container("all", {"memory": "10Gi"})
NOTHING = container("nothing", {"cpu": "1"})
SIDE = container("side", {"memory": "100Mi"}, sidecar=True)


@pytest.mark.parametrize(
    ("made", "of", "expected"),
    [
        pytest.param(pod(guaranteed("a", {"cpu": "1", "memory": "1Gi"})), "a", -997, id="Guaranteed"),
        pytest.param(pod(container("a")), "a", 1000, id="BestEffort"),
        pytest.param(pod(TENTH), "tenth", 900, id="a tenth of the memory"),
        pytest.param(pod(LITTLE), "little", 991, id="rounded down"),
        pytest.param(pod(ALL), "all", 3, id="never as safe as Guaranteed"),
        pytest.param(pod(NOTHING), "nothing", 999, id="never as exposed as BestEffort"),
        pytest.param(pod(container("a"), priority=2_000_001_000), "a", -997, id="node-critical"),
        pytest.param(pod(container("a"), priority=2_000_000_000), "a", 1000, id="cluster-critical"),
        pytest.param(pod(TENTH, init=(SIDE,)), "side", 900, id="a sidecar is as safe as the container it serves"),
        pytest.param(pod(TENTH, NOTHING, init=(SIDE,)), "side", 991, id="a sidecar with a larger request"),
        pytest.param(pod(TENTH, init=(replace(SIDE, restartable=False),)), "side", 991, id="an init container"),
        pytest.param(
            pod(TENTH, NOTHING, own=Resources(amounts({"memory": "3Gi"}))),
            "tenth",
            800,
            id="pod-level requests are shared equally",
        ),
        pytest.param(
            pod(NOTHING, own=Resources(amounts({"memory": "1Gi"}))), "nothing", 900, id="pod-level requests only"
        ),
    ],
)
def test_oom_scores(made, of, expected):
    (found,) = (one for one in made.all_containers if one.name == of)

    assert oom_score_adj(made, found, memory=NODE_LIMITS.memory) == expected


@pytest.mark.parametrize(
    ("made", "exclusive", "expected"),
    [
        pytest.param(
            pod(guaranteed("a", {"cpu": "1", "memory": "1Gi"}), guaranteed("b", {"cpu": "500m", "memory": "1Gi"})),
            False,
            CgroupResources(cpu_shares=1536, cpu_quota=150_000, cpu_period=100_000, memory_limit=2 * GIB),
            id="Guaranteed: the sum",
        ),
        pytest.param(
            pod(guaranteed("a", {"cpu": "1", "memory": "1Gi"})),
            True,
            CgroupResources(cpu_shares=1024, cpu_quota=-1, cpu_period=100_000, memory_limit=GIB),
            id="Guaranteed with exclusive CPUs: no quota",
        ),
        pytest.param(pod(container("a")), False, CgroupResources(cpu_shares=2), id="BestEffort: the minimum"),
        pytest.param(
            pod(container("a", {"cpu": "1"}, {"cpu": "2", "memory": "1Gi"}), container("b", {}, {"memory": "1Gi"})),
            False,
            CgroupResources(cpu_shares=1024, memory_limit=2 * GIB),
            id="Burstable: limited only if all containers are",
        ),
        pytest.param(
            pod(container("a", {"cpu": "1"}), own=Resources({}, amounts({"cpu": "2", "memory": "1Gi"}))),
            False,
            CgroupResources(cpu_shares=1024, cpu_quota=200_000, cpu_period=100_000, memory_limit=GIB),
            id="Burstable: pod-level limits",
        ),
        pytest.param(
            pod(
                container("a", {}, {"cpu": "1", "memory": "1Gi"}),
                init=(container("i", {}, {"cpu": "3", "memory": "1Gi"}),),
                overhead=amounts({"cpu": "250m", "memory": "64Mi"}),
            ),
            False,
            CgroupResources(cpu_shares=256, cpu_quota=325_000, cpu_period=100_000, memory_limit=GIB + 64 * MIB),
            id="the largest init container and the overhead count",
        ),
    ],
)
def test_pod_limits(made, exclusive, expected):
    resources = pod_cgroup_resources(made, node_limits=NODE_LIMITS, exclusive=exclusive)

    assert resources == replace(expected, hugepages=NO_PAGES)


@given(pods())
def test_no_container_has_more_than_its_pod(made):
    filled = apply_defaults(made)
    whole = pod_cgroup_resources(filled, node_limits=NODE_LIMITS)

    for one in filled.all_containers:
        resources = container_resources(filled, one, node_limits=NODE_LIMITS)
        assert 2 <= resources.cpu_shares <= 262_144
        assert -997 <= resources.oom_score_adj <= 1000
        assert (resources.oom_score_adj == 1000) is (filled.qos is QoS.BEST_EFFORT)
        if whole.memory_limit:
            assert 0 < resources.memory_limit <= whole.memory_limit
        if whole.cpu_quota > 0:
            assert 0 < resources.cpu_quota <= max(whole.cpu_quota, 1000)
