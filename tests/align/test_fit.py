from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align import fit
from alignup.align.fit import FitFailure, InsufficientResource, NodeAllocatable, UsedResources
from alignup.align.workload import Pod, Resources, demand
from alignup.align.workload.demand import FitRequest
from tests.strategies_pods import DEVICES, amounts, container, pods, pods_of_one_host

GPU, NIC = DEVICES
PAGES = "hugepages-2Mi"
LARGE = NodeAllocatable(milli_cpu=8000, memory=1000, ephemeral_storage=1000, pods=10, scalars={GPU: 2, PAGES: 100})
EMPTY = UsedResources()
STATIC = {"kubernetes.io/config.source": "file"}

counts = st.integers(0, 20)
scalars = st.dictionaries(st.sampled_from([GPU, NIC, PAGES]), counts)
requests = st.builds(FitRequest, counts, counts, counts, scalars)
hosts = st.builds(
    NodeAllocatable, milli_cpu=counts, memory=counts, ephemeral_storage=counts, pods=st.integers(0, 4), scalars=scalars
)


def asking(cpu=0, memory=0, storage=0, **more):
    return FitRequest(cpu, memory, storage, more)


def using(*taken):
    return reduce(UsedResources.plus, taken, EMPTY)


def without(used, pod):
    return used.plus(pod, by=-1)


def pod_asking(name="p", **fields):
    return Pod(name=name, containers=(container("c", fields.pop("requests", {})),), **fields)


def taken_by(others):
    return using(*map(demand.fit_used, others))


def judged(pod, *, allocatable=LARGE, others=()):
    return fit.check_fit(pod, usage=taken_by(others), allocatable=allocatable, others=others)


def lacking(failure):
    return {short.resource for short in failure.insufficient} if failure else set()


def test_an_empty_allocatable_fits_no_pod():
    assert fit.insufficient_resources(asking(), usage=EMPTY, allocatable=NodeAllocatable()) == (
        InsufficientResource("pods", 1, 0, 0),
    )


@pytest.mark.parametrize(
    ("devices", "scalars"),
    [
        pytest.param({GPU: 4}, {GPU: 4, PAGES: 100}, id="other than were known"),
        pytest.param({NIC: 1}, {GPU: 2, PAGES: 100, NIC: 1}, id="of a resource that is new"),
    ],
)
def test_a_host_offers_its_devices(devices, scalars):
    assert LARGE.with_devices(devices) == LARGE._replace(scalars=scalars)


def test_an_unknown_extended_resource_rejects_no_pod():
    pod = pod_asking(requests={"cpu": "1", NIC: "3", GPU: "1", "kubernetes.io/batch": "1", "hugepages-1Gi": "1Gi"})

    assert fit.effective_request(pod, LARGE).scalars == {GPU: 1, "kubernetes.io/batch": 1, "hugepages-1Gi": 1 << 30}
    assert fit.effective_request(pod, LARGE._replace(scalars={NIC: 0})).scalars[NIC] == 3


def test_an_unknown_extended_resource_counts_as_overhead():
    pod = pod_asking(requests={NIC: "3"}, overhead=amounts({NIC: "1500m"}))

    assert fit.effective_request(pod, LARGE).scalars == {NIC: 2}


def test_the_first_shortfall_is_reported_and_all_are_kept():
    pod = pod_asking(requests={"cpu": "9", "memory": "2k", NIC: "1"})

    failure = judged(pod)

    cpu, memory = InsufficientResource("cpu", 9000, 0, 8000), InsufficientResource("memory", 2000, 0, 1000)
    assert failure == FitFailure("OutOfcpu", cpu.message, (cpu, memory))


@pytest.mark.parametrize(
    ("fields", "critical"),
    [
        pytest.param({"priority": 2_000_000_000}, True, id="a system's priority"),
        pytest.param({"annotations": STATIC}, True, id="from a file"),
        pytest.param({"annotations": {"kubernetes.io/config.mirror": ""}}, True, id="the mirror of a static pod"),
    ],
)
def test_critical(fields, critical):
    assert fit.is_critical(pod_asking(**fields)) is critical


@pytest.mark.parametrize(
    ("critical", "other", "may"),
    [
        pytest.param({"annotations": STATIC}, {}, True, id="a pod that is not critical"),
        pytest.param({"annotations": STATIC}, {"annotations": STATIC}, False, id="not a critical one"),
        pytest.param({"priority": 2_000_000_001}, {"priority": 2_000_000_000}, True, id="but one of lower priority"),
        pytest.param({"priority": 2_000_000_000}, {"priority": 2_000_000_000}, False, id="not one of the same"),
    ],
)
def test_which_pods_a_critical_pod_may_preempt(critical, other, may):
    assert fit.may_preempt(pod_asking(**critical), pod_asking(**other)) is may


def test_no_pod_is_preempted_even_if_it_would_help():
    other = pod_asking("other", requests={"cpu": "2"})
    pod = pod_asking(requests={"cpu": "7"}, annotations=STATIC)

    assert judged(pod, others=[other]).reason == "OutOfcpu"


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        pytest.param({}, {"cpu": 6000, "memory": 90, GPU: 1}, id="what its containers ask for"),
        pytest.param(
            {"overhead": amounts({"cpu": "1", "memory": "5", "ephemeral-storage": "9", PAGES: "9"})},
            {"cpu": 5000, "memory": 85, GPU: 1},
            id="with overhead on it",
        ),
        pytest.param(
            {
                "resources": Resources(amounts({"cpu": "3", "ephemeral-storage": "9"})),
                "overhead": amounts({"cpu": "1"}),
            },
            {"cpu": 4000, "memory": 100, GPU: 2},
            id="only what the pod as a whole asks for, if it does",
        ),
        pytest.param(
            {"resources": Resources(limits=amounts({"cpu": "3"}))},
            {"cpu": 8000, "memory": 100, GPU: 2},
            id="nothing if it has only limits",
        ),
    ],
)
def test_what_evicting_a_pod_frees(fields, left):
    needs = {"pods": 1, "cpu": 8000, "memory": 100, "ephemeral-storage": 10, GPU: 2, PAGES: 10}
    other = pod_asking(requests={"cpu": "2", "memory": "10", GPU: "1", PAGES: "0"}, **fields)

    unmet = fit.still_missing([InsufficientResource(name, amount, 0, 0) for name, amount in needs.items()], [other])

    assert unmet == {**left, "ephemeral-storage": 10, PAGES: 10}


@given(pods_of_one_host(), st.randoms(use_true_random=False))
def test_used_resources_depend_on_the_pods_not_on_their_order(pods_, random):
    """Pods come in one order and leave in another; what stays is what those that stay take."""
    takes = [demand.fit_used(pod) for pod in pods_]
    order = random.sample(takes, len(takes))
    stay, leave = order[: len(order) // 2], order[len(order) // 2 :]

    assert reduce(without, leave, using(*takes)) == using(*stay)
    assert reduce(without, order, using(*takes)) == EMPTY


@given(requests, st.lists(requests, max_size=4), hosts)
def test_a_pod_fits_if_the_total_is_within_allocatable(request_, others, host):
    """Independent of the arithmetic of the check: add the pod, and look at what it asks for."""
    used = using(*others)
    full = used.plus(request_)

    short = {
        insufficient.resource for insufficient in fit.insufficient_resources(request_, usage=used, allocatable=host)
    }

    over = {
        name
        for name, asked, total, capacity in [
            ("pods", 1, full.pods, host.pods),
            ("cpu", request_.milli_cpu, full.milli_cpu, host.milli_cpu),
            ("memory", request_.memory, full.memory, host.memory),
            ("ephemeral-storage", request_.ephemeral_storage, full.ephemeral_storage, host.ephemeral_storage),
            *((n, asked, full.scalars.get(n, 0), host.scalars.get(n, 0)) for n, asked in request_.scalars.items()),
        ]
        if asked and total > capacity
    }
    assert short == over


@given(requests, st.lists(requests, max_size=4), hosts)
def test_the_missing_amount_makes_it_fit(request_, others, host):
    used = using(*others)
    missing = {
        insufficient.resource: insufficient.missing
        for insufficient in fit.insufficient_resources(request_, usage=used, allocatable=host)
    }

    def grown(less):
        lacking = {name: amount - less for name, amount in missing.items()}
        return NodeAllocatable(
            milli_cpu=host.milli_cpu + lacking.pop("cpu", 0),
            memory=host.memory + lacking.pop("memory", 0),
            ephemeral_storage=host.ephemeral_storage + lacking.pop("ephemeral-storage", 0),
            pods=host.pods + lacking.pop("pods", 0),
            scalars={**host.scalars, **{name: host.scalars.get(name, 0) + more for name, more in lacking.items()}},
        )

    assert all(amount > 0 for amount in missing.values())
    assert not fit.insufficient_resources(request_, usage=used, allocatable=grown(0))
    assert [
        insufficient.missing for insufficient in fit.insufficient_resources(request_, usage=used, allocatable=grown(1))
    ] == [1] * len(missing)


@given(pods(), pods_of_one_host(max_size=6))
def test_removing_pods_never_makes_a_pod_not_fit(pod, others):
    host = NodeAllocatable(milli_cpu=16000, memory=32 << 30, pods=4, scalars={GPU: 8, PAGES: 2 << 30})

    with_all, with_half = (judged(pod, allocatable=host, others=there) for there in (others, others[::2]))

    assert lacking(with_half) <= lacking(with_all)
