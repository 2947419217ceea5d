"""Gangs: an answer is what kubelets decide in its order, and no larger part fits than the answer has."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.align.host import Host
from alignup.align.machine import Device
from alignup.align.settings import Policy, Scope
from alignup.align.workload import Pod
from alignup.placement.cluster import Cluster, Confirmed
from alignup.placement.gang import GangAnswer, GangBinding
from alignup.placement.host_model import HostModel, unsettled_devices
from alignup.placement.host_report import Cause, PodStage
from alignup.placement.host_verdicts import HostVerdicts
from alignup.placement.pod_demands import find_refusal
from alignup.placement.verdict import DEFECT, UNSETTLED_DEVICES, WAITS_FOR_CONFIRMATION
from tests.align.hosts import GPU, admit, arrivals, hosts, make_host, make_pod
from tests.effort import examples
from tests.placement.clusters import cluster_of, host_with, report, shared_pod
from tests.strategies_pods import container, guaranteed


def gang(*amounts: Mapping[str, str]) -> list[Pod]:
    return [make_pod(f"member-{number}", None, **asked) for number, asked in enumerate(amounts)]


def are_admitted(cluster: Cluster, host: str, pods: Sequence[Pod]) -> bool:
    """Return whether a host admits pods in this order, as they demand, whichever terminating pods end meanwhile.

    The kubelet may choose other devices than predicted; then the next pod that requests such devices has to wait.
    """
    record = cluster.record(host)
    assert record
    unsettled: set[str] = set()
    ledgers = list(record.states().ledgers)
    for pod in pods:
        tried = [record.model.at(ledger) for ledger in ledgers]
        decisions = [host.decide_without_plugins(pod) for host in tried]
        if any(find_refusal(host, pod) for host in tried):
            return False
        requested = {name for container in pod.all_containers for name in container.resources.requests}
        if not all(decision.admitted for decision in decisions) or unsettled & requested:
            return False
        ledgers = [decision.after for decision in decisions if decision.after]
        unsettled.update(*map(unsettled_devices, decisions))
        for uid in record.states().terminating:
            ledgers += [record.model.without(ledger, (uid,)) for ledger in ledgers]
    return True


def on_each_host(answer: GangAnswer) -> dict[str, list[Pod]]:
    pods: dict[str, list[Pod]] = {}
    for pod, host in answer.bindings:
        pods.setdefault(host, []).append(pod)
    return pods


def largest_part(
    cluster: Cluster, members: Sequence[Pod], eligible: Mapping[str, Sequence[str]], room: Mapping[str, int]
) -> int:
    """Return the most members that hosts admit, by trying all hosts for each member, and all orders on each host."""
    holds: dict[tuple[str, tuple[int, ...]], bool] = {}
    most = 0
    for places in product(("", *cluster.hosts), repeat=len(members)):
        size = len(members) - places.count("")
        wanted = zip(members, places, strict=True)
        if size <= most or any(place and place not in eligible[pod.uid] for pod, place in wanted):
            continue
        for host in set(places) - {""}:
            numbers = tuple([number for number, place in enumerate(places) if place == host])
            if len(numbers) > room.get(host, len(numbers)):
                break
            if (host, numbers) not in holds:
                orders = permutations([members[number] for number in numbers])
                holds[host, numbers] = any(are_admitted(cluster, host, order) for order in orders)
            if not holds[host, numbers]:
                break
        else:
            most = size
    return most


def host_of(cores: int) -> Host:
    """Return a host with one NUMA node, and CPUs for pods on all cores but the first."""
    return make_host(shape=f"pack:1 numa:1 core:{cores + 1} pu:1")


small_hosts = st.builds(
    make_host,
    st.sampled_from((Policy.SINGLE_NUMA_NODE, Policy.RESTRICTED, Policy.BEST_EFFORT)),
    st.sampled_from(Scope),
    shape=st.sampled_from(("pack:2 numa:1 core:4 pu:1", "pack:1 numa:1 core:4 pu:1", "pack:2 numa:1 core:2 pu:2")),
)
two_containers = Pod(
    name="two",
    uid="two",
    containers=(
        guaranteed("first", {"cpu": "1", "memory": "1Gi", GPU: "1"}),
        guaranteed("second", {"cpu": "3", "memory": "1Gi"}),
    ),
)
gpu_pod = Pod(name="gpu", uid="gpu", containers=(container("app", {GPU: "1"}, {GPU: "1"}),))
small_pods = st.sampled_from(
    [
        *(make_pod(cpu=cpu) for cpu in "1234"),
        *(make_pod(cpu=cpu, gpu="1") for cpu in "12"),
        make_pod(cpu="2", gpu="2"),
        shared_pod("shared"),
        shared_pod("large", "3"),
        gpu_pod,
        two_containers,
    ]
)


class TestEqualToTryingEverything:
    @settings(max_examples=examples(250), deadline=None)
    @given(st.data())
    def test_the_largest_part_is_found(self, data):
        cluster = Cluster()
        names = "abcd"[: data.draw(st.integers(1, 4))]
        for name in names:
            host = data.draw(small_hosts | hosts())
            for number in range(data.draw(st.integers(0, 2))):
                admit(host, replace(data.draw(small_pods), uid=f"{name}-{number}"))
            cluster.confirm(report(name, host))
            for uid in list(host.ledger.pods)[: data.draw(st.integers(0, 1))]:
                cluster.observe(host.ledger.pods[uid].pod, name, PodStage.TERMINATING)
        kinds = data.draw(st.lists(small_pods | arrivals("member"), min_size=1, max_size=5))
        members = [
            replace(data.draw(st.sampled_from(kinds)), name=f"member-{number}", uid=f"member-{number}")
            for number in range(data.draw(st.integers(1, 5)))
        ]
        all_hosts = list(names)
        some = st.just(all_hosts) | st.lists(st.sampled_from(names), unique=True)
        eligible = {pod.uid: data.draw(some) for pod in members}
        room = data.draw(st.just({}) | st.dictionaries(st.sampled_from(names), st.integers(0, 2)))

        def has_room(host, pods):
            return len(pods) <= room.get(host, len(pods))

        def ask():
            return cluster.feasible_gang(
                members, eligible=lambda pod: eligible[pod.uid], has_room=has_room, max_steps=100_000
            )

        answer = ask()
        assert answer.proved or room
        assert sorted([*answer.hosts, *(pod.uid for pod in answer.rest)]) == [pod.uid for pod in members]
        assert all(host in eligible[uid] for uid, host in answer.hosts.items())
        assert all(are_admitted(cluster, host, pods) for host, pods in on_each_host(answer).items())
        assert all(has_room(host, pods) for host, pods in on_each_host(answer).items())
        assert not answer.proved or len(answer.bindings) == largest_part(cluster, members, eligible, room)
        assert answer == ask()
        for pod in answer.rest:
            assert room.keys() >= set(answer.verdicts[pod.uid].admitting()) or not answer.proved
            assert set(answer.verdicts[pod.uid]) == set(eligible[pod.uid])

    @settings(max_examples=examples(200), deadline=None)
    @given(st.lists(st.integers(2, 7), min_size=1, max_size=4), st.lists(st.integers(1, 4), min_size=1, max_size=6))
    def test_members_are_packed_as_well_as_possible(self, cores, sizes):
        cluster = cluster_of(**{f"host{number}": host_of(count) for number, count in enumerate(cores)})
        members = gang(*({"cpu": str(size)} for size in sizes))
        answer = cluster.feasible_gang(members, max_steps=100_000)
        assert answer.proved
        assert len(answer.bindings) == most_packed(tuple(cores), tuple(sizes))
        assert all(are_admitted(cluster, host, pods) for host, pods in on_each_host(answer).items())


@cache
def most_packed(free: tuple[int, ...], sizes: tuple[int, ...]) -> int:
    """Return how many of *sizes* fit into bins."""
    if not sizes:
        return 0
    most = most_packed(free, sizes[1:])
    for place, size in enumerate(free):
        if size >= sizes[0]:
            left = tuple(sorted((*free[:place], size - sizes[0], *free[place + 1 :])))
            most = max(most, 1 + most_packed(left, sizes[1:]))
    return most


def tight_gang() -> tuple[Cluster, list[Pod]]:
    """Return hosts and members with as many CPUs as all members but one."""
    cluster = cluster_of(a=host_of(7), b=host_of(6), c=host_of(5))
    return cluster, gang(*({"cpu": size} for size in "233441"))


class TestSearch:
    def test_a_host_in_a_state_that_was_tried_before_admits_no_more_than_it_can(self):
        """Hosts share states with those that only a search was in; its pods are not the next ones."""
        cluster = Cluster(max_states=8, max_unconfirmed=None)
        cluster.confirm(report("a", host_of(2)))
        first, *others = gang(*[{"cpu": "1"}] * 3)
        assert cluster.feasible_gang([first]).fits
        assert cluster.assume(first, "a").admits
        assert [pod.uid for pod, _ in cluster.feasible_gang(others).bindings] == [others[0].uid]

    def test_the_rest_of_a_gang_has_the_verdicts_beside_its_part(self):
        cluster = cluster_of(a=make_host(), b=make_host())
        members = gang(*[{"gpu": "1"}] * 5)
        answer = cluster.feasible_gang(members)
        assert [pod.uid for pod in answer.rest] == ["member-4"]
        verdicts = answer.verdicts["member-4"]
        assert {verdict.reason for verdict in verdicts.values()} == {"not enough cpu, example.com/gpu on one NUMA node"}
        assert cluster.feasible(members[4]).admitting() == ["a", "b"]
        assert answer.proved

    def test_search_ends_after_its_steps_and_says_so(self):
        cluster, members = tight_gang()
        answer = cluster.feasible_gang(members, max_steps=40)
        assert (len(answer.bindings), len(answer.rest), answer.proved) == (5, 1, False)
        assert answer.steps <= 40
        assert not cluster.feasible_gang(members, max_steps=0).bindings

    def test_work_is_limited_however_many_pods_differ_and_whatever_they_have(self, monkeypatch):
        """A member of a gang can have twenty containers, and each member others, so that nothing is decided once."""
        decided: list[str] = []
        admit_tentatively, of_tentative = HostVerdicts.admit_tentatively, HostVerdicts.of_tentative

        def counted(method):
            def decide(*arguments):
                decided.append(method.__name__)
                return method(*arguments)

            return decide

        monkeypatch.setattr(HostVerdicts, "admit_tentatively", counted(admit_tentatively))
        monkeypatch.setattr(HostVerdicts, "of_tentative", counted(of_tentative))
        cluster = cluster_of(**{f"h{number}": make_host() for number in range(4)})
        members = [
            Pod(
                name=f"member-{number}",
                uid=f"member-{number}",
                containers=tuple(container(f"c{index}", {"memory": f"{number + 1}Mi"}) for index in range(20)),
            )
            for number in range(400)
        ]

        answer = cluster.feasible_gang(members, max_steps=100)

        assert (answer.fits, answer.proved) == (False, False)
        assert len(decided) <= 2 * 100 / 5
        assert set(answer.verdicts) == {pod.uid for pod in answer.rest}
        assert len(answer.rest) + len(answer.bindings) == len(members)

    def test_members_go_to_eligible_hosts_only(self):
        cluster = cluster_of(a=make_host(), b=make_host(), c=make_host())
        members = gang(*[{"gpu": "1"}] * 4)
        answer = cluster.feasible_gang(members, eligible=lambda pod: ("c",) if pod.uid == "member-3" else ("a", "c"))
        assert answer.fits
        assert answer.hosts["member-3"] == "c"
        assert "b" not in answer.hosts.values()
        one_each = cluster.feasible_gang(members, eligible=lambda _: ["a"])
        assert len(one_each.bindings) == 2
        assert set(one_each.verdicts["member-3"]) == {"a"}

    def test_few_eligible_hosts_of_many_are_filled_as_if_there_were_no_others(self):
        few = {
            "busy": host_with(make_pod("held", cpu="2")),
            "full": host_with(make_pod("most", cpu="4"), make_pod("rest", cpu="3")),
            "idle": make_host(),
        }
        many = cluster_of(**few, **{f"host-{number}": make_host() for number in range(40)})
        members = gang(*[{"cpu": "2"}] * 4)

        answer = many.feasible_gang(members, eligible=lambda _: few)

        assert answer.fits
        assert answer.bindings == cluster_of(**few).feasible_gang(members).bindings

    def test_a_host_gets_no_more_members_than_it_has_room_for(self):
        cluster = cluster_of(a=host_of(4), b=host_of(4))
        same, mixed = gang(*[{"cpu": "1"}] * 3), gang({"cpu": "1"}, {"cpu": "2"}, {"cpu": "1"})
        for members in (same, mixed):
            answer = cluster.feasible_gang(members, has_room=lambda _, pods: len(pods) <= 1)
            assert sorted(answer.hosts.values()) == ["a", "b"]
            assert answer.proved == (members is same)

    def test_no_gang_fits_no_hosts(self):
        assert Cluster().feasible_gang([]).fits
        answer = Cluster().feasible_gang(gang({}))
        assert (len(answer.rest), answer.proved) == (1, True)

    def test_a_defect_on_one_host_leaves_the_others(self, monkeypatch):
        failed = []
        cluster, unaware = Cluster(on_defect=lambda host, error: failed.append((host, str(error)))), Cluster()
        for name, host in (("a", make_host()), ("b", make_host(Policy.RESTRICTED))):
            cluster.confirm(report(name, host))
            unaware.confirm(report(name, host))
        align = HostModel.align

        def fail(self, ledger, pod):
            if self.settings.topology.policy is Policy.RESTRICTED and ledger.pods:
                raise ZeroDivisionError("a defect")
            return align(self, ledger, pod)

        monkeypatch.setattr(HostModel, "align", fail)
        answer = cluster.feasible_gang(gang(*[{"gpu": "1"}] * 4))

        assert sorted(answer.hosts.values()) == ["a", "a", "b"]
        assert answer.verdicts["member-3"]["b"].reason == DEFECT
        assert set(failed) == {("b", "a defect")}
        with pytest.raises(ZeroDivisionError):
            unaware.feasible_gang(gang(*[{"gpu": "1"}] * 4))


class TestUnconfirmedPods:
    def test_members_share_a_host_without_waiting_for_reports_about_each_other(self):
        cluster = cluster_of(a=make_host())
        members = gang(*[{"cpu": "1", "gpu": "1"}] * 2)
        answer = cluster.feasible_gang(members)
        assert answer.fits
        assert all(verdict.admits for verdict in cluster.assume_gang(answer.bindings))
        assert cluster.feasible_gang(members).hosts == answer.hosts
        assert cluster.verdict(make_pod("other", cpu="1"), "a").reason == WAITS_FOR_CONFIRMATION

    def test_a_gang_waits_for_the_report_about_a_pod_of_others(self):
        cluster = cluster_of(a=make_host())
        cluster.assume(make_pod("other", cpu="1"), "a")
        answer = cluster.feasible_gang(gang({"cpu": "1"}))
        assert answer.verdicts["member-0"]["a"].reason == WAITS_FOR_CONFIRMATION

    def test_bound_members_stay_where_they_are(self):
        cluster = cluster_of(a=make_host(), b=make_host())
        members = gang(*[{"cpu": "1", "gpu": "1"}] * 3)
        cluster.observe(members[2], "b", PodStage.RUNNING)
        answer = cluster.feasible_gang(members)
        assert answer.hosts == {"member-2": "b", "member-0": "b", "member-1": "a"}
        assert all(verdict.admits for verdict in cluster.assume_gang(answer.bindings))

    def test_none_is_assumed_if_one_no_longer_fits(self):
        cluster = cluster_of(a=make_host(), b=make_host())
        members = gang(*[{"gpu": "1"}] * 4)
        answer = cluster.feasible_gang(members)
        last = answer.bindings[-1].host
        cluster.confirm(report(last, host_with(make_pod("late", cpu="1", gpu="1")), 2))
        verdicts = cluster.assume_gang(answer.bindings)
        assert [verdict.admits for verdict in verdicts] == [True, True, True, False]
        assert not any(record.bindings for host in "ab" if (record := cluster.record(host)))

    def test_a_member_waits_until_the_devices_of_another_are_known(self):
        devices = [Device(GPU, f"gpu-{number}", nodes=1 << number % 2) for number in range(4)]
        host = make_host(Policy.BEST_EFFORT, memory=False)
        host.update_devices(GPU, devices)
        members = [replace(gpu_pod, uid=f"member-{number}") for number in range(2)]
        assert cluster_of(a=host).feasible_gang(members).fits
        host.update_devices(GPU, [replace(device, nodes=1 | 1 << number) for number, device in enumerate(devices[:2])])
        answer = cluster_of(a=host).feasible_gang(members)
        assert answer.verdicts["member-1"]["a"].reason == UNSETTLED_DEVICES


class TestAnotherOrderOfBindings:
    """A scheduler binds the released pods of a gang in its own order."""

    def results(self, pods, *, reports):
        host = make_host(policy=Policy.SINGLE_NUMA_NODE)
        cluster = cluster_of(a=host)
        assert all(verdict.admits for verdict in cluster.assume_gang([GangBinding(pod, "a") for pod in pods]))
        results: list[Confirmed] = []
        for place, pod in enumerate(reversed(pods)):
            cluster.observe(pod, "a", PodStage.RUNNING)
            assert host.admit(pod).admitted
            if place in reports:
                results += cluster.confirm(report("a", host, 2 + place))
        return {confirmed.uid: confirmed for confirmed in results}

    @pytest.mark.parametrize("reports", [(0, 1, 2), (2,), (1, 2)])
    def test_equal_pods_are_as_predicted(self, reports):
        results = self.results(gang(*[{"cpu": "2"}] * 3), reports=reports)
        assert [(result.difference, result.causes) for result in results.values()] == [("", ())] * 3

    def test_the_order_is_the_cause_with_pods_that_differ(self):
        results = self.results(gang({"cpu": "1"}, {"cpu": "2"}), reports=(1,))
        assert {result.causes for result in results.values()} == {(Cause.BINDING_ORDER,)}
        assert not results["member-0"].as_predicted


def test_a_kept_state_does_not_count_a_member_that_was_only_tried():
    """The host gets into the state in which a gang was tried before; only NUMA node 1 has room for one more member."""
    host = make_host()
    cluster = Cluster(max_states=8)
    cluster.confirm(report("a", host))
    assert cluster.feasible_gang([make_pod("tried", cpu="3")]).fits

    host.admit(make_pod("admitted", cpu="3"))
    cluster.confirm(report("a", host, 2))

    assert len(cluster.feasible_gang([make_pod("x", cpu="3"), make_pod("y", cpu="3")]).rest) == 1
