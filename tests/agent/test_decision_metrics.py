"""Counts of decisions that recorded runs do not cover: scopes, pod-level resources, fit checks."""

from collections import Counter
from dataclasses import replace

import pytest

from alignup.agent import decision_metrics
from alignup.agent.decision_metrics import decision_counts, reason_label
from alignup.align.decision import Outcome
from alignup.align.host import Host
from alignup.align.quantity import Quantity
from alignup.align.settings import FeatureGates, Policy, Scope
from alignup.align.workload import Container, Pod, Resources
from alignup.align.workload.validation import accept
from tests.agent.fake_backend import GPU, host

REQUESTS, ERRORS = (decision_metrics.REQUESTS,), (decision_metrics.ERRORS,)
CPU, CPU_ERROR = (decision_metrics.CPU_REQUESTS,), (decision_metrics.CPU_ERRORS,)
MEMORY, MEMORY_ERROR = (decision_metrics.MEMORY_REQUESTS,), (decision_metrics.MEMORY_ERRORS,)
CACHE = (decision_metrics.ALIGNED, "container", "uncore_cache")
CORES, NO_CORES = (
    (decision_metrics.ALIGNED, "container", "physical_cpu"),
    (decision_metrics.UNALIGNED, "container", "physical_cpu"),
)


def nodes(scope, *, failure=False):
    return (decision_metrics.UNALIGNED if failure else decision_metrics.ALIGNED), scope, "numa_node"


def rejected(reason):
    return decision_metrics.REJECTIONS, reason


def container(name, restartable=False, **amounts):
    quantities = {GPU if key == "gpu" else key: Quantity.parse(text) for key, text in amounts.items()}
    return Container(name, Resources(quantities, quantities), restartable=restartable)


def pod(*containers, init=(), **whole):
    quantities = {key: Quantity.parse(text) for key, text in whole.items()}
    resources = Resources(quantities, quantities)
    return accept(Pod(name="p", uid="p", containers=containers, init=tuple(init), resources=resources))


TWO = pod(container("a", cpu="2", memory="1Gi"), container("b", cpu="2", memory="1Gi"))
WIDE = pod(container("a", cpu="2", memory="1Gi"), container("b", cpu="10", memory="1Gi"))
HUNGRY = pod(container("a", cpu="2", memory="1Gi"), container("b", cpu="2", memory="100Gi"))
ODD = pod(container("a", cpu="2", memory="1Gi"), container("b", cpu="3", memory="1Gi"))
NO_GPU = pod(container("a", cpu="2", memory="1Gi"), container("b", cpu="2", memory="1Gi", gpu="9"))
IDLE = pod(container("a"))
AGAIN = pod(container("b", cpu="2", memory="1Gi"), init=[container("a", cpu="2", memory="1Gi")])

NONE, BEST, SINGLE = Policy.NONE, Policy.BEST_EFFORT, Policy.SINGLE_NUMA_NODE
SERVED = {REQUESTS: 1, CPU: 2, MEMORY: 2, CACHE: 2}
FIRST = {CPU: 1, MEMORY: 1, CACHE: 1}  #: only the first container gets something


def failed(reason):
    return {REQUESTS: 1, ERRORS: 1, rejected(reason): 1}


@pytest.mark.parametrize(
    ("policy", "scope", "asks", "added"),
    [
        pytest.param(NONE, "container", TWO, SERVED, id="policy none counts what is given"),
        pytest.param(BEST, "container", TWO, SERVED, id="so does best-effort"),
        pytest.param(SINGLE, "container", TWO, SERVED | {nodes("container"): 2}, id="alignment by container"),
        pytest.param(SINGLE, "pod", TWO, SERVED | {nodes("pod"): 1}, id="alignment by pod"),
        pytest.param(SINGLE, "container", IDLE, {REQUESTS: 1, nodes("container"): 1}, id="a pod without requests"),
        pytest.param(BEST, "container", AGAIN, SERVED, id="CPUs used again are counted again"),
        pytest.param(
            SINGLE,
            "container",
            WIDE,
            failed("TopologyAffinityError") | FIRST | {nodes("container"): 1, nodes("container", failure=True): 1},
            id="the second container fits no node",
        ),
        pytest.param(
            SINGLE,
            "pod",
            WIDE,
            failed("TopologyAffinityError") | {nodes("pod", failure=True): 1},
            id="the pod fits no node",
        ),
        pytest.param(
            BEST,
            "container",
            HUNGRY,
            failed("UnexpectedAdmissionError") | SERVED | {MEMORY_ERROR: 1},
            id="memory comes after CPUs",
        ),
        pytest.param(
            NONE,
            "container",
            HUNGRY,
            SERVED | {rejected("UnexpectedAdmissionError"): 1, MEMORY_ERROR: 1},
            id="policy none counts no errors",
        ),
        pytest.param(BEST, "pod", NO_GPU, failed("UnexpectedAdmissionError") | FIRST, id="devices come first"),
    ],
)
def test_counts_of_a_decision(policy, scope, asks, added):
    on = host(policy, scope=Scope(scope))

    decision = on.decide(asks)

    assert decision_counts(decision, pod=asks, host=on) == added


def test_whole_cores_are_counted():
    on = host(BEST, options={"full-pcpus-only": "true"})

    whole, odd = (decision_counts(on.decide(asks), pod=asks, host=on) for asks in (TWO, ODD))

    assert (whole[CORES], whole[NO_CORES]) == (2, 0)
    assert (odd[CORES], odd[NO_CORES], odd[CPU_ERROR], odd[CPU]) == (1, 1, 1, 2)
    assert odd[rejected("Other")] == 1


def test_a_kept_pod_is_counted_without_allocations():
    on = host(SINGLE, options={"full-pcpus-only": "true"})
    on.admit(TWO)

    again = on.decide(TWO)

    assert again.kept
    assert decision_counts(again, pod=TWO, host=on) == {REQUESTS: 1, CPU: 2, MEMORY: 2, CORES: 2, nodes("container"): 2}


def test_a_pod_rejected_by_the_fit_check_is_counted_as_allocated():
    on = host(SINGLE)
    burstable = pod(container("a", cpu="39500m"))

    decision = on.decide(burstable)

    assert decision.rejection.reason == "OutOfcpu"
    assert decision_counts(decision, pod=burstable, host=on) == {
        REQUESTS: 1,
        rejected("OutOfcpu"): 1,
        nodes("container"): 1,
    }


def test_nothing_is_counted_before_plugins_have_answered():
    on = host(SINGLE)
    asking = Host(on.machine, replace(on.settings, preferred_allocation=frozenset({GPU})))
    asks = pod(container("a", cpu="2", memory="1Gi", gpu="1"))

    decision = asking.decide(asks)

    assert decision.outcome is Outcome.ASKING
    assert decision_counts(decision, pod=asks, host=asking) == Counter()


PIECE = pod(container("a", cpu="2", memory="1Gi"), container("b"), cpu="4", memory="4Gi")
LARGE_PIECE = pod(container("a", cpu="2", memory="1Gi"), container("b"), cpu="20", memory="4Gi")
HUNGRY_PIECE = pod(container("a", cpu="2", memory="1Gi"), container("b"), cpu="4", memory="100Gi")


@pytest.mark.parametrize(
    ("asks", "added"),
    [
        pytest.param(PIECE, {CPU: 1, MEMORY: 2, CACHE: 1}, id="CPUs by container, memory for the pod too"),
        pytest.param(LARGE_PIECE, {ERRORS: 1, CPU_ERROR: 1, rejected("UnexpectedAdmissionError"): 1}, id="no CPUs"),
        pytest.param(
            HUNGRY_PIECE,
            {ERRORS: 1, CPU: 1, MEMORY: 1, MEMORY_ERROR: 1, CACHE: 1, rejected("UnexpectedAdmissionError"): 1},
            id="no memory",
        ),
    ],
)
def test_pod_level_resources(asks, added):
    on = host(BEST, scope=Scope.POD)
    gates = FeatureGates({"PodLevelResourceManagers": True})
    on = Host(on.machine, replace(on.settings, gates=gates))

    decision = on.decide(asks)

    assert decision_counts(decision, pod=asks, host=on) == {REQUESTS: 1, **added}


@pytest.mark.parametrize(
    ("reason", "label"),
    [
        ("TopologyAffinityError", "TopologyAffinityError"),
        ("OutOfcpu", "OutOfcpu"),
        ("OutOfexample.com/gpu", "OutOfExtendedResources"),
        ("OutOfhugepages-2Mi", "OutOfExtendedResources"),
        ("SMTAlignmentError", "Other"),
        ("EmptyPodSharedPoolError", "Other"),
        ("Anything", "Other"),
    ],
)
def test_the_number_of_reasons_is_limited(reason, label):
    assert reason_label(reason) == label
