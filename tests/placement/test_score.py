"""Which host is best for a pod: the one where later pods lose the least."""

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.align.host import Host
from alignup.align.machine import Device
from alignup.align.settings import Policy
from alignup.align.workload import Pod
from alignup.placement.cluster import Cluster
from alignup.placement.free_capacity import DEVICE, MAX_COUNTED, measure_free_capacity
from alignup.placement.score import POINT
from tests.align.hosts import GPU, NIC, arrivals, hosts, make_host, make_pod
from tests.effort import examples
from tests.placement.clusters import cluster_of, report, shared_pod


def server(*pods: Pod, cpus: int = 16, gpus: int = 0, nics: int = 0, placed: bool = True) -> Host:
    """Two NUMA nodes, each with so many CPUs and devices, on which *pods* are admitted in this order."""
    empty = make_host(Policy.RESTRICTED, shape=f"pack:2 numa:1 core:{cpus} pu:1")
    devices = tuple(
        Device(resource, f"{node}-{number}", nodes=1 << node if placed else None)
        for resource, count in ((GPU, gpus), (NIC, nics))
        for node in (0, 1)
        for number in range(count)
    )
    made = Host(replace(empty.machine, devices=devices), empty.settings)
    for pod in pods:
        assert made.admit(pod).admitted, pod.uid
    return made


def ranked(cluster: Cluster, wanted: Pod) -> list[str]:
    return [ranked_host.host for ranked_host in cluster.rank(wanted)]


WITHOUT_DEVICES = [
    pytest.param(make_pod("new", cpu="4"), id="exclusive CPUs"),
    pytest.param(shared_pod("new", cpu="4"), id="shared CPUs"),
]


class TestPodsWithoutDevices:
    @pytest.mark.parametrize("wanted", WITHOUT_DEVICES)
    @pytest.mark.parametrize("placed", [True, False])
    @pytest.mark.parametrize(("plain", "gpus"), [("a", "b"), ("b", "a")])
    def test_they_leave_hosts_with_devices_to_others(self, wanted, placed, plain, gpus):
        cluster = cluster_of(**{plain: server(), gpus: server(gpus=4, nics=2, placed=placed)})

        assert ranked(cluster, wanted) == [plain, gpus]

    @pytest.mark.parametrize("wanted", WITHOUT_DEVICES)
    def test_even_if_all_devices_are_in_use(self, wanted):
        """When those pods end, others need the CPUs beside the devices."""
        users = [make_pod(f"user-{number}", cpu="4", gpu="4") for number in range(2)]
        cluster = cluster_of(busy=server(*users, gpus=4), plain=server())

        assert ranked(cluster, wanted) == ["plain", "busy"]

    @pytest.mark.parametrize("wanted", WITHOUT_DEVICES)
    def test_they_go_where_the_fewest_devices_lose_their_cpus(self, wanted):
        cluster = cluster_of(a=server(gpus=4), b=server(gpus=2), c=server(cpus=64, gpus=4), d=server(gpus=3))

        assert ranked(cluster, wanted) == ["c", "b", "d", "a"]

    def test_devices_in_use_lose_nothing(self):
        users = [make_pod(f"user-{number}", cpu="8", gpu="4") for number in range(2)]
        cluster = cluster_of(free=server(gpus=4), used=server(*users, gpus=4))

        best, other = cluster.rank(make_pod("new", cpu="4"))

        assert (best.host, best.score.stranded) == ("used", 0)
        assert (other.host, other.score.stranded) == (
            "free",
            4 * DEVICE - 4 * (DEVICE * 11 // 15),
        )  # 11 of 15 CPUs stay for 4 GPUs

    def test_shared_cpus_strand_devices_too(self):
        (ranked_host,) = cluster_of(a=server(gpus=4)).rank(shared_pod("new", cpu="8"))

        assert ranked_host.score.stranded == 8 * DEVICE - 8 * (DEVICE * 23 // 31)  # 23 of 31 CPUs stay for 8 GPUs


class TestPodsWithDevices:
    def test_they_go_where_the_fewest_others_are_stranded(self):
        cluster = cluster_of(dense=server(gpus=4), sparse=server(cpus=32, gpus=4))

        best, other = cluster.rank(make_pod("new", cpu="7", gpu="1"))

        assert (best.host, best.score.stranded) == ("sparse", 0)
        assert (other.host, other.score.stranded > DEVICE // 2) == ("dense", True)

    def test_they_use_devices_that_are_stranded_already(self):
        other = make_pod("other", cpu="12")
        cluster = cluster_of(idle=server(gpus=2), started=server(other, gpus=2))

        best, second = cluster.rank(make_pod("new", cpu="1", gpu="1"))

        assert (best.host, second.host) == ("started", "idle")
        assert best.score.stranded < 0

    def test_they_fill_up_numa_nodes_in_use(self):
        cluster = cluster_of(idle=server(gpus=4), started=server(make_pod("other", cpu="3", gpu="1"), gpus=4))

        best, second = cluster.rank(make_pod("new", cpu="3", gpu="1"))

        assert [(ranked_host.host, ranked_host.score.devices_beside) for ranked_host in (best, second)] == [
            ("started", 2),
            ("idle", 3),
        ]


class TestFit:
    def test_a_gap_that_fits_exactly_is_better_than_an_unused_numa_node(self):
        cluster = cluster_of(idle=server(), started=server(make_pod("x", cpu="11"), make_pod("y", cpu="12")))

        best, second = cluster.rank(make_pod("new", cpu="4"))

        assert [(ranked_host.host, ranked_host.score.cpus_beside) for ranked_host in (best, second)] == [
            ("started", 0),
            ("idle", 11),
        ]

    def test_a_small_host_that_fits_is_better_than_a_large_one(self):
        assert ranked(cluster_of(a=server(cpus=64), b=server(cpus=8)), make_pod("new", cpu="7")) == ["b", "a"]

    def test_pods_on_shared_cpus_fill_up_hosts_in_use(self):
        cluster = cluster_of(idle=server(), started=server(shared_pod("x", cpu="8")))

        assert ranked(cluster, shared_pod("new", cpu="4")) == ["started", "idle"]


class TestStranded:
    def test_a_free_device_needs_its_share_of_the_cpus(self):
        host = server(
            make_pod("x", cpu="15", gpu="1"), cpus=31, gpus=4
        )  # with 30 CPUs for pods beside the reserved one

        free = measure_free_capacity(host)
        assert free.stranded_devices[GPU] == 3 * DEVICE - 4 * (DEVICE // 2)
        assert free.stranded_cpus == 0

    def test_many_devices_of_one_numa_node_count_as_few(self):
        few, many = (cluster_of(a=server(gpus=count)).rank(make_pod("new", cpu="5"))[0].score for count in (4, 40))

        assert (few.devices_beside, many.devices_beside) == (MAX_COUNTED, MAX_COUNTED)
        assert many.stranded == pytest.approx(few.stranded, rel=0.02)

    def test_devices_on_a_numa_node_without_memory_are_stranded(self):
        host = server(make_pod("x", cpu="1", memory=str((16 << 30) - (64 << 20))), gpus=2)

        assert measure_free_capacity(host).stranded_devices == {GPU: 2 * DEVICE}


def test_names_matter_for_equal_hosts_only():
    made = [server(), server(gpus=4), server(make_pod("x", cpu="3")), server()]

    for names in permutations("abcd"):
        ranking = cluster_of(**dict(zip(names, made, strict=True))).rank(make_pod("new", cpu="2"))

        equal = sorted((names[0], names[3]))
        assert [ranked_host.host for ranked_host in ranking] == [names[2], *equal, names[1]]


@settings(max_examples=examples(40))
@given(st.data())
def test_points_add_up_and_depend_on_the_state_only(data):
    host = data.draw(hosts())
    for number in range(data.draw(st.integers(0, 4))):
        host.admit(replace(data.draw(arrivals("p")), uid=f"p{number}"))
    wanted = replace(data.draw(arrivals("w")), uid="wanted")
    first, again = cluster_of(a=host), Cluster()
    again.confirm(report("b", make_host()))
    again.rank(wanted)
    again.confirm(report("z", host))

    for ranked_host in first.rank(wanted):
        score = ranked_host.score
        assert sum(score.points) == round(POINT * score.total)
        assert all(points >= 0 for points in score.points)
        assert 0 < score.total <= 100
        assert again.verdict(wanted, "z").score == score
