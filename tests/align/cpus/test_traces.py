"""The CPU provider event by event beside a model of the kubelet: init containers, re-use, pod-level CPUs, releases."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.align.cpus.selection import PackedSelection
from alignup.align.release import NEWEST
from tests.align.cpus.cpu_manager_model import CpuManagerModel, Json, names, pod_json, pod_jsons
from tests.conformance.test_cpu_trace import Trace, check, compare, create
from tests.effort import examples
from tests.vector_types import pod_of, view_of

#: two NUMA nodes with six CPUs each
TOPOLOGY: Json = {
    "num_sockets": 2,
    "num_cores": 6,
    "cpus": [[cpu, cpu // 2 * 2, cpu // 6, cpu // 6, cpu // 6] for cpu in range(12)],
}


def trace(pods: list[Json], events: list[Json]) -> Json:
    """A vector: what the kubelet does at each of *events*."""
    view = view_of(TOPOLOGY)
    selection = PackedSelection(view, spread=False, by_cache=False)
    nodes = {node: frozenset(range(6 * node, 6 * node + 6)) for node in (0, 1)}
    model = CpuManagerModel(nodes, selection, {pod["uid"]: pod for pod in pods})
    return {
        "topology": TOPOLOGY,
        "options": [],
        "gates": ["PodLevelResourceManagers"],
        "release": NEWEST,
        "num_reserved": 0,
        "reserved_cpus_flag": "",
        "reserved": "",
        "reserved_physical": "",
        "pods": pods,
        "events": [model.play(event) for event in [{"op": "start"}, *events]],
    }


def of(op: str, pod: Json, container: str | None = None, **affinity: Any) -> Json:
    where = {} if container is None else {"container": container}
    return {"op": op, "pod": pod["uid"], **where, **(affinity or {"affinity_none": True})}


def admissions(pod: Json, **affinity: Any) -> list[Json]:
    """The events of an admission in pod scope."""
    if pod.get("pod_resources"):
        return [of("pod_hints", pod), of("allocate_pod", pod, **affinity)]
    return [of("pod_hints", pod), *(of("allocate", pod, name, **affinity) for name in names(pod))]


@st.composite
def traces(draw: st.DrawFn) -> Json:
    """Pods are admitted, lose containers one by one or all at once, and are admitted again."""
    pods = [draw(pod_jsons(f"p{number}")) for number in range(draw(st.integers(2, 4)))]
    events: list[Json] = []
    for _ in range(draw(st.integers(2, 8))):
        pod = draw(st.sampled_from(pods))
        step = draw(st.sampled_from(["admit", "admit", "container", "remove", "end"]))
        affinity = draw(st.sampled_from([{}, {"affinity": [0]}, {"affinity": [1]}, {"affinity": [0, 1]}]))
        name = draw(st.sampled_from(names(pod)))
        if step == "admit":
            events += admissions(pod, **affinity)
        elif step == "container":
            events += [of("hints", pod, name), of("allocate", pod, name, **affinity)]
        elif step == "remove":
            events.append(of("remove", pod, name))
        else:
            events += [of("remove", pod, each) for each in names(pod)]
    return trace(pods, events)


@settings(max_examples=examples(80))
@given(traces())
def test_every_case_equals_the_kubelets_up_to_its_faults(case):
    check(case)


def test_cpus_of_a_removed_init_container_that_another_pod_owns_are_not_reused():
    """The kubelet gives them again: a pod-level allocation does not change which CPUs another pod may reuse."""
    first = pod_json("first", init=[(3, False)], containers=[2])
    second = pod_json("second", init=[], containers=[12], whole=12)
    third = pod_json("third", init=[], containers=[8], whole=8)

    started = [of("allocate", first, "i0"), of("remove", first, "i0")]
    again = [of("hints", first, "c0"), of("allocate", first, "c0")]
    full = compare(trace([first, second], [*started, *admissions(second), *again]))
    room = compare(trace([first, third], [*started, *admissions(third), *again]))

    assert (full, room) == ("CPUs given that were not available", "CPUs given that were not available")


def test_a_pod_whose_containers_own_cpus_keeps_them_when_it_is_allocated_as_a_whole():
    """As after a restart with pod scope instead of container scope; the kubelet loses the CPUs of the containers."""
    pod = pod_json("pod", init=[(2, False)], containers=[3], whole=4)
    case = trace([pod], [of("allocate", pod, "i0"), of("allocate", pod, "c0"), *admissions(pod)])
    provider = create(case, [])
    started = Trace(case, provider, {"pod": pod_of(pod)})

    for event in case["events"]:
        started.play(event)

    assert started.ledger.held == {"pod": {"i0": 0b11, "c0": 0b111}}
    assert started.ledger.pod_held == {}
    assert started.ledger.lost == 0
