"""The memory provider: who is handled, where things go, what is rejected, and pods placed as one piece."""

from dataclasses import replace

import pytest

from alignup.align.errors import ProviderError
from alignup.align.hint import HintList
from alignup.align.memory.ledger import Block, MemoryLedger
from alignup.align.memory.provider import MemoryPolicy, MemoryProvider, MemorySettings
from alignup.align.settings import FeatureGates
from alignup.align.workload import Container, Pod, Resources
from tests.align.memory.model import (
    ANYWHERE,
    AS_ONE,
    GIB,
    MEMORY,
    PAGES,
    STATIC,
    app,
    idle,
    on,
    placed,
    pod,
    retain,
    spelled,
)
from tests.strategies_pods import amounts, container, guaranteed


def test_pods_are_placed_as_a_whole_only_with_both_gates():
    on_ = {"PodLevelResourceManagers": True}

    assert MemorySettings.of_gates(MemoryPolicy("Static"), FeatureGates(on_)).pod_level_managers
    assert not MemorySettings.of_gates(MemoryPolicy.STATIC, FeatureGates()).pod_level_managers
    gates = FeatureGates(on_ | {"PodLevelResources": False})
    assert not MemorySettings.of_gates(MemoryPolicy.STATIC, gates).pod_level_managers


BURSTABLE = pod("p", container("c", {"cpu": "1", MEMORY: "1Gi"}))
GUARANTEED = pod("p", app("c", "1Gi"))
AS_A_WHOLE = Pod(
    name="p",
    uid="p",
    containers=(container("c"),),
    resources=Resources(amounts({"cpu": "1", MEMORY: "1Gi"}), amounts({"cpu": "1", MEMORY: "1Gi"})),
)


@pytest.mark.parametrize(
    ("made", "settings"),
    [
        pytest.param(GUARANTEED, MemorySettings(), id="policy None"),
        pytest.param(BURSTABLE, STATIC, id="a pod that is not Guaranteed"),
        pytest.param(AS_A_WHOLE, STATIC, id="a pod with pod-level resources, which are not managed"),
    ],
)
def test_unmanaged_pods_get_no_hints_and_no_memory(made, settings):
    ledger = idle(4, 4)
    only = made.containers[0]

    assert MemoryProvider(settings).hints(ledger, made, only) is None
    assert MemoryProvider(settings).hints(ledger, made, None) is None
    assert MemoryProvider(settings).allocate(ledger, made, only, affinity=ANYWHERE) == ledger
    assert MemoryProvider(settings).allocate(ledger, made, None, affinity=ANYWHERE) == ledger


def test_all_types_are_placed_by_one_family():
    made = pod("p", app("c", "5Gi", "512Mi"))

    answer = MemoryProvider(STATIC).hints(idle(4, 8, 8, pages={0: 512, 1: 512, 2: 0}), made, made.containers[0])

    assert answer is not None
    assert answer[MEMORY] is answer[PAGES]
    assert list(map(str, spelled(answer))) == [
        "{1}", "{0-1} not preferred", "{0,2} not preferred", "{1-2} not preferred", "{0-2} not preferred",
    ]  # fmt: skip


def test_a_fraction_of_a_byte_has_no_hints_and_is_rejected():
    made = pod("p", guaranteed("c", {"cpu": "1", MEMORY: "1500m"}))

    assert MemoryProvider(STATIC).hints(idle(4), made, made.containers[0]) is None
    assert MemoryProvider(STATIC).hints(idle(4), made, None) is None
    assert MemoryProvider(STATIC).needs(idle(4), made, made.containers[0]) == {}
    with pytest.raises(ProviderError, match="failed to represent quantity as int64"):
        placed(idle(4), made)


def test_a_placed_container_has_hints_for_its_nodes():
    made = pod("p", app("c", "1Gi", "2Mi"))
    ledger = placed(idle(4, 4, pages={0: 1, 1: 1}), made, on(1))

    answer = MemoryProvider(STATIC).hints(ledger, made, made.containers[0])

    assert answer == {MEMORY: HintList.of([on(1, preferred=True)]), PAGES: HintList.of([on(1, preferred=True)])}
    assert MemoryProvider(STATIC).hints(ledger, made, None) == answer
    larger = pod("p", app("c", "2Gi", "2Mi"))
    assert MemoryProvider(STATIC).hints(ledger, larger, larger.containers[0]) is None
    fewer = pod("p", app("c", "1Gi"))
    assert MemoryProvider(STATIC).hints(ledger, fewer, fewer.containers[0]) is None


def test_a_removed_pod_is_released_even_if_only_its_pod_level_blocks_are_known():
    whole_only = idle(4).give_pod("p", [Block(1, MEMORY, GIB)], containers={})

    assert retain(replace(whole_only, held={}), ()) == idle(4)


def whole(made: Pod, memory_: str, pages: str | None = None) -> Pod:
    """*made* with pod-level resources."""
    texts = {"cpu": "8", MEMORY: memory_} | ({PAGES: pages} if pages else {})
    resources = Resources(amounts(texts), amounts(texts))
    return Pod(name=made.name, uid=made.uid, init=made.init, containers=made.containers, resources=resources)


def sharing(name: str, *, sidecar: bool = False) -> Container:
    return container(name, sidecar=sidecar)


def test_a_pod_placed_as_a_whole_requests_its_pod_level_resources():
    made = whole(pod("p", app("a", "1Gi"), sharing("b")), "6Gi")

    answer = MemoryProvider(AS_ONE).hints(idle(4, 4, 8), made, None)

    assert list(map(str, spelled(answer)))[:2] == ["{2}", "{0-1} not preferred"]
    assert MemoryProvider(AS_ONE).need(made, made.containers[0]) == {MEMORY: GIB}
    assert MemoryProvider(AS_ONE).need(made, made.containers[1]) == {}


def test_nothing_is_managed_under_policy_none():
    ledger = MemoryLedger()

    assert ledger.allocatable() == ()
    assert placed(ledger, GUARANTEED, settings=MemorySettings()) == ledger
