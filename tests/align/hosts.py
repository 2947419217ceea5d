"""Hosts for tests of whole admissions: a short way to make one, and a strategy that makes all kinds of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import reject
from hypothesis import strategies as st

from alignup.align.cpus.options import CpuSettings
from alignup.align.decision import Decision
from alignup.align.errors import SettingsError
from alignup.align.host import Host, Settings
from alignup.align.machine import Device, KubeletView
from alignup.align.memory.reserved_memory import ReservedMemory, propose_reserved_memory
from alignup.align.quantity import Quantity
from alignup.align.settings import FeatureGates, Policy, Scope, TopologyOptions, TopologySettings
from alignup.align.workload import Amounts, Pod, Resources
from alignup.align.workload.names import POLICY_ANNOTATION, SCOPE_ANNOTATION
from alignup.align.workload.validation import accept
from alignup.machines.synthetic import parse
from tests.strategies import machines
from tests.strategies_pods import DEVICES, aligned, guaranteed, pods, quantities

GIB = 1 << 30
GPU, NIC = DEVICES
RESERVATION: Amounts = {"cpu": Quantity.parse("1"), "memory": Quantity.parse("64Mi")}

#: What may be said together of the static CPU policy.
CPU_OPTIONS: tuple[tuple[str, ...], ...] = (
    (),
    (),
    ("full-pcpus-only",),
    ("distribute-cpus-across-numa",),
    ("full-pcpus-only", "distribute-cpus-across-numa"),
    ("strict-cpu-reservation",),
    ("strict-cpu-reservation", "full-pcpus-only"),
    ("prefer-align-cpus-by-uncorecache",),
    ("align-by-socket",),
    ("distribute-cpus-across-cores",),
)


def make_host(
    policy: Policy = Policy.SINGLE_NUMA_NODE,
    scope: Scope = Scope.CONTAINER,
    *,
    shape: str = "pack:2 numa:1 core:4 pu:1",
    devices: Iterable[Device] | None = None,
    memory: bool = True,
    **settings: Any,
) -> Host:
    """Two nodes, each with four CPUs, 16 GiB, a GPU and a NIC; CPU 0 and 64 MiB of node 0 are reserved."""
    machine = parse(shape, memory=16 * GIB)
    if devices is None:
        devices = [
            Device(resource, f"{resource.partition('/')[2]}-{node.id}", nodes=1 << node.id)
            for resource in DEVICES
            for node in machine.nodes
        ]
    made = Settings(
        topology=TopologySettings(policy=policy, scope=scope),
        cpus=CpuSettings(policy="static", reservation=RESERVATION["cpu"]),
        memory_policy="Static" if memory else "None",
        reserved_memory=(ReservedMemory(0, {"memory": RESERVATION["memory"]}),),
        reservation=RESERVATION,
    )
    return Host(replace(machine, devices=tuple(devices)), replace(made, **settings))


def make_pod(uid: str = "a", annotations: Mapping[str, str] | None = None, **asked: str) -> Pod:
    """A Guaranteed pod of one container, 2 CPUs and 1 GiB unless it asks for something else (``gpu="1"``)."""
    names = {"gpu": GPU, "nic": NIC}
    amounts = {"cpu": "2", "memory": "1Gi"} | {names.get(name, name): amount for name, amount in asked.items()}
    return Pod(name=uid, uid=uid, containers=(guaranteed("app", amounts),), annotations=annotations or {})


#: For tests of other packages.
host, pod = make_host, make_pod


def after(tries: int) -> Callable[[], bool]:
    """Stop a search after *tries* calls."""
    left = iter(range(tries))
    return lambda: next(left, None) is None


def admit(host: Host, wanted: Pod) -> Decision:
    """Admit, with every plugin answering that it likes the last of its devices best."""
    answers: dict[Any, tuple[str, ...]] = {}
    while (decision := host.admit(wanted, answers)).preference_requests:
        for ask in decision.preference_requests:
            rest = [id_ for id_ in reversed(ask.available) if id_ not in ask.must_include]
            answers[ask] = (*ask.must_include, *rest)[: ask.size]
    return decision


def devices(resource: str, nodes: Sequence[int]) -> st.SearchStrategy[tuple[Device, ...]]:
    """Devices of one resource: on a node, on two, on one that is not there, on none, without topology; some are ill."""
    masks = [1 << node for node in nodes]
    places = st.sampled_from([*masks, *masks, masks[0] | masks[-1], 1 << max(nodes) + 1, 0, None])
    locations = st.tuples(places, st.sampled_from((True, True, True, False)))
    return st.lists(locations, max_size=5).map(
        lambda made: tuple(
            Device(resource, f"{resource}-{number}", nodes=place, healthy=healthy)
            for number, (place, healthy) in enumerate(made)
        )
    )


@st.composite
def hosts(draw: st.DrawFn) -> Host:
    """A host of any machine under any settings a kubelet would start with."""
    machine = draw(machines(max_nodes=4))
    ids = [node.id for node in machine.nodes]
    machine = machine.with_reported(draw(devices(GPU, ids)) + draw(devices(NIC, ids)))
    policy = draw(st.sampled_from((*reversed(Policy), Policy.SINGLE_NUMA_NODE, Policy.RESTRICTED)))
    static = draw(st.sampled_from((True, True, True, False)))
    reserved = _reserved(machine.kubelet_view()) if draw(st.booleans()) else None
    settings = Settings(
        topology=TopologySettings(
            policy=policy,
            scope=draw(st.sampled_from(Scope)),
            options=TopologyOptions(prefer_closest=machine.distances is not None and draw(st.booleans())),
        ),
        cpus=CpuSettings(
            policy="static" if static else "none",
            options=dict.fromkeys(draw(st.sampled_from(CPU_OPTIONS)), "true") if static else {},
            reservation=RESERVATION["cpu"],
        ),
        memory_policy="None" if reserved is None else "Static",
        reserved_memory=reserved or (),
        reservation=RESERVATION,
        gates=FeatureGates({"CPUManagerPolicyAlphaOptions": True, "PodLevelResourceManagers": draw(st.booleans())}),
        preferred_allocation=draw(st.sampled_from((frozenset(), frozenset({GPU})))),
        fit_check=draw(st.booleans()),
        pod_policy_annotations=draw(st.booleans()),
    )
    try:
        return Host(machine, settings)
    except SettingsError:  # align-by-socket does not go with every policy and machine
        reject()


def _reserved(view: KubeletView) -> tuple[ReservedMemory, ...] | None:
    """Entries that keep the reservation back; ``None``: the machine has not as much."""
    try:
        return propose_reserved_memory(RESERVATION, view)
    except SettingsError:
        return None


def _asks(amounts: Amounts) -> Resources:
    return Resources(amounts, amounts)


#: Little enough that several find room.
modest = st.fixed_dictionaries(
    {"cpu": quantities(("1", "2")), "memory": quantities(("64Mi", "1Gi"))},
    optional={GPU: quantities(("1", "2")), NIC: quantities(("1",)), "hugepages-2Mi": quantities(("2Mi", "64Mi"))},
).map(_asks)


#: What a pod may choose for itself, where the host lets it.
choices: st.SearchStrategy[dict[str, str]] = st.just({}) | st.fixed_dictionaries(
    {}, optional={POLICY_ANNOTATION: st.sampled_from(Policy), SCOPE_ANNOTATION: st.sampled_from(Scope)}
)


def arrivals(uid: str) -> st.SearchStrategy[Pod]:
    """A pod as the API server hands it on, more often than not a Guaranteed one that asks for little."""
    small = pods(uid=uid, asks=modest, with_pod_level=False)
    large = pods(uid=uid, asks=aligned, with_pod_level=False)
    written = st.one_of(small, small, small, large, pods(uid=uid, asks=modest), pods(uid=uid))
    return st.builds(lambda pod, choice: accept(replace(pod, annotations=choice)), written, choices)
