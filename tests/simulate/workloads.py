"""Workloads for tests."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from alignup.align.workload import Pod
from alignup.simulate.arrivals import PodArrival, PodDeparture, WorkloadEvent, ordered
from tests.align.hosts import arrivals as arriving_pods
from tests.align.hosts import make_pod
from tests.effort import examples

#: For properties of whole workloads: fewer examples, each with many pods.
some = settings(max_examples=examples(33), suppress_health_check=[HealthCheck.too_slow])


def arriving_in_order(*pods: Pod, every: float = 1.0) -> tuple[WorkloadEvent, ...]:
    return tuple(PodArrival(number * every, pod) for number, pod in enumerate(pods))


def small(uid: str, **requests: str) -> Pod:
    """A Guaranteed pod with 2 CPUs and 1 GiB by default."""
    return make_pod(uid, None, **requests)


@st.composite
def workloads(draw: st.DrawFn, *, max_pods: int = 5) -> tuple[WorkloadEvent, ...]:
    events: list[WorkloadEvent] = []
    for number in range(draw(st.integers(0, max_pods))):
        start = draw(st.integers(0, 20)) / 2
        stays = draw(st.none() | st.integers(1, 20))
        pod = draw(arriving_pods(f"u{number}"))
        events.append(PodArrival(start, pod))
        events += [PodDeparture(start + stays / 4, pod.uid)] if stays else []
    return ordered(events)
