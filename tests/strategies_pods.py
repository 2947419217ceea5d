"""Pods for tests: short constructors, and Hypothesis strategies for realistic pods.

The API server accepts every pod made here, before and after defaulting.
"""

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import strategies as st

from alignup.align.quantity import Quantity
from alignup.align.workload import Amounts, Container, Pod, Resources, demand
from alignup.align.workload.validation import apply_defaults

WHOLE_CPUS = ("1", "2", "3", "4", "8", "2000m", "2.0")
CPUS = (*WHOLE_CPUS, "100m", "250m", "500m", "1500m", "0.1", "2.5", "1e0", "0")
SIZES = ("64Mi", "128Mi", "200Mi", "512Mi", "1Gi", "3Gi", "16Gi", "1G", "300M", "1e9", "123456789", "1.5Gi", "0")
COUNTS = ("0", "1", "2", "3", "4", "8")
PAGES = {"hugepages-2Mi": ("2Mi", "64Mi", "1Gi", "0"), "hugepages-1Gi": ("1Gi", "4Gi", "0")}
DEVICES = ("example.com/gpu", "vendor.io/nic")


def amounts(texts: Mapping[str, str] | None = None) -> Amounts:
    return {name: Quantity.parse(text) for name, text in (texts or {}).items()}


def container(
    name: str,
    requests: Mapping[str, str] | None = None,
    limits: Mapping[str, str] | None = None,
    *,
    sidecar: bool = False,
) -> Container:
    """Build a container from amounts as text."""
    return Container(name, Resources(amounts(requests), amounts(limits)), restartable=sidecar)


def guaranteed(name: str, texts: Mapping[str, str], *, sidecar: bool = False) -> Container:
    """Build a container whose requests equal its limits."""
    return container(name, texts, texts, sidecar=sidecar)


def quantities(texts: tuple[str, ...]) -> st.SearchStrategy[Quantity]:
    return st.sampled_from([Quantity.parse(text) for text in texts])


#: CPU and memory, either, or neither.
compute = st.fixed_dictionaries({}, optional={"cpu": quantities(CPUS), "memory": quantities(SIZES)})

#: Whole CPUs and memory, as an aligned container requests them.
whole = st.fixed_dictionaries({"cpu": quantities(WHOLE_CPUS), "memory": quantities(SIZES[:-1])})

#: Devices and huge pages, which cannot be overcommitted.
extras: st.SearchStrategy[dict[str, Quantity]] = st.just({}) | st.fixed_dictionaries(
    {},
    optional={
        **{name: quantities(COUNTS) for name in DEVICES},
        **{name: quantities(texts) for name, texts in PAGES.items()},
    },
)

aligned = st.builds(lambda amounts, more: Resources({**amounts, **more}, {**amounts, **more}), whole, extras)
limits_only = st.builds(lambda amounts, more: Resources({}, {**amounts, **more}), whole, extras)
requests_only = st.builds(Resources, compute)
room_above = st.builds(
    lambda amounts, more, room: Resources(
        {**amounts, **more}, {**{name: amounts[name] + amount for name, amount in room.items()}, **more}
    ),
    whole,
    extras,
    compute,
)

#: The resources of one container, in the ways people write them.
resources = aligned | limits_only | room_above | requests_only | st.just(Resources())


@st.composite
def pod_level(draw: st.DrawFn, pod: Pod) -> Resources:
    """Draw pod-level resources for *pod* that are large enough for its containers."""
    filled = apply_defaults(pod)
    needed, capped = demand.requests(filled, overhead=False), demand.limits(filled, overhead=False)
    requests, limits = {}, {}
    for name, room in draw(compute).items():
        least = max(needed.get(name, Quantity.ZERO), capped.get(name, Quantity.ZERO))
        ways = draw(st.sampled_from(["request", "limit", "same"]))
        if ways != "limit":
            requests[name] = least + room
        if ways != "request":
            limits[name] = least + room
    return Resources(requests, limits)


@st.composite
def pods(
    draw: st.DrawFn,
    *,
    uid: str = "uid",
    asks: st.SearchStrategy[Resources] = resources,
    with_pod_level: bool = True,
) -> Pod:
    """Draw a pod with containers, init containers and sidecars, overhead and pod-level resources.

    With *asks* set to ``aligned`` and no pod-level resources the pod is Guaranteed.
    """
    counts = draw(st.tuples(st.integers(0, 3), st.integers(1, 3)))
    init = tuple(Container(f"init-{i}", draw(asks), draw(st.booleans())) for i in range(counts[0]))
    containers = tuple(Container(f"main-{i}", draw(asks)) for i in range(counts[1]))
    pod = Pod(
        name=f"pod-{uid}",
        uid=uid,
        init=init,
        containers=containers,
        overhead=draw(st.just({}) | compute),
        priority=draw(st.none() | st.sampled_from([0, 1000, 2_000_000_000])),
    )
    pod_resources = draw(st.just(Resources()) | pod_level(pod)) if with_pod_level else Resources()
    return replace(pod, resources=pod_resources)


@st.composite
def pods_of_one_host(
    draw: st.DrawFn, *, max_size: int = 12, asks: st.SearchStrategy[Resources] = resources
) -> tuple[Pod, ...]:
    """Draw pods with different UIDs for one host."""
    return tuple(draw(pods(uid=f"u{number}", asks=asks)) for number in range(draw(st.integers(1, max_size))))
