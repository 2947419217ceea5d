"""The memory provider: who is handled, where things go, what is rejected, and pods placed as one piece."""

from dataclasses import replace

import pytest

from alignup.align import bits
from alignup.align.errors import ProviderError, SettingsError
from alignup.align.hint import HintList
from alignup.align.memory.ledger import Block, MemoryLedger
from alignup.align.memory.provider import MemoryPolicy, MemoryProvider, MemorySettings, pinned_containers
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
    nodes_of,
    on,
    placed,
    pod,
    retain,
    spelled,
)
from tests.strategies_pods import amounts, container, guaranteed

FULL = "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
NO_WIDER = "[memorymanager] failed to find NUMA nodes to extend the current topology hint"
VIOLATED = "[memorymanager] preferred hint violates NUMA node allocation"


@pytest.mark.parametrize(
    ("name", "error"),
    [
        pytest.param("static", 'unknown policy: "static"', id="names are case-sensitive"),
        pytest.param("BestEffort", 'policy "BestEffort" is not available for platform "linux"', id="only on Windows"),
    ],
)
def test_unknown_policies_raise_the_kubelets_error(name, error):
    with pytest.raises(SettingsError) as caught:
        MemoryPolicy(name)

    assert str(caught.value) == error


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


def test_an_impossible_request_has_no_hints():
    made = pod("p", app("c", "9Gi"))

    assert MemoryProvider(STATIC).hints(idle(4, 4), made, made.containers[0]) == {}
    assert MemoryProvider(STATIC).hints(idle(4, 4), made, None) == {}


def test_a_fraction_of_a_byte_has_no_hints_and_is_rejected():
    made = pod("p", guaranteed("c", {"cpu": "1", MEMORY: "1500m"}))

    assert MemoryProvider(STATIC).hints(idle(4), made, made.containers[0]) is None
    assert MemoryProvider(STATIC).hints(idle(4), made, None) is None
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


def test_a_placed_container_stays():
    made = pod("p", app("c", "1Gi"))
    ledger = placed(idle(4, 4), made, on(1))

    assert placed(ledger, made, on(0)) == ledger


@pytest.mark.parametrize(
    ("busy", "size", "affinity", "nodes"),
    [
        pytest.param([], "3Gi", on(1), [1], id="the nodes chosen"),
        pytest.param([], "3Gi", ANYWHERE, [0], id="without any, the fewest and lowest"),
        pytest.param([], "7Gi", on(2), [0, 2], id="nodes that are too small are joined by others"),
        pytest.param([(0, "1Gi")], "7Gi", on(2), [1, 2], id="but not by nodes in use"),
    ],
)
def test_where_a_container_goes(busy, size, affinity, nodes):
    ledger = idle(4, 4, 4)
    for node, taken in busy:
        ledger = placed(ledger, pod(f"on {node}", app("c", taken)), on(node))

    ledger = placed(ledger, pod("p", app("c", size)), affinity)

    assert list(bits.members(nodes_of(ledger, "p", "c"))) == nodes


@pytest.mark.parametrize(
    ("busy", "size", "affinity", "error"),
    [
        pytest.param([], "9Gi", ANYWHERE, FULL, id="more than there is"),
        pytest.param(
            [((0,), "2Gi"), ((1,), "2Gi")], "1Gi", on(0, 1), VIOLATED, id="a group over nodes in use for themselves"
        ),
        pytest.param([((0,), "2Gi")], "5Gi", on(0), NO_WIDER, id="nothing to join a node in use"),
    ],
)
def test_a_request_that_cannot_be_placed_raises_the_kubelets_error(busy, size, affinity, error):
    ledger = idle(4, 4)
    for nodes, taken in busy:
        ledger = placed(ledger, pod(f"on {nodes}", app("c", taken)), on(*nodes))

    with pytest.raises(ProviderError) as caught:
        placed(ledger, pod("p", app("c", size)), affinity)

    assert str(caught.value) == error
    assert caught.value.reason == "UnexpectedAdmissionError"
    assert caught.value.message == f"Allocate failed due to {error}, which is unexpected"


def test_init_containers_lend_their_memory_until_the_next_one_starts():
    made = pod("p", app("c", "3Gi"), init=[app("i", "4Gi"), app("s", "1Gi", sidecar=True), app("j", "2Gi")])

    ledger = placed(idle(8), made, on(0))

    assert {name: blocks[0].size // GIB for name, blocks in ledger.held["p"].items()} == {
        "i": 0,
        "s": 1,
        "j": 0,
        "c": 3,
    }
    assert ledger.nodes[0].tables[MEMORY].reserved == 4 * GIB
    started = MemoryProvider().start_container(ledger, made, made.containers[0])
    assert list(started.held["p"]) == ["s", "c"]
    assert started.nodes[0].assignments == 2
    assert MemoryProvider().start_container(ledger, made, made.init[0]) == ledger


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


def test_a_pod_placed_as_a_whole_is_charged_once():
    init = [sharing("early"), app("side", "1Gi", sidecar=True), sharing("late"), app("big", "7Gi")]
    made = whole(pod("p", app("own", "2Gi"), sharing("one"), sharing("two"), init=init), "8Gi", "2Mi")
    ledger = idle(16, 16, pages={0: 1, 1: 1})

    ledger = MemoryProvider(AS_ONE).allocate(ledger, made, None, affinity=on(1))

    shares = {name: {block.type: block.size for block in blocks} for name, blocks in ledger.held["p"].items()}
    page = 2 << 20
    assert shares == {
        "early": {MEMORY: 8 * GIB, PAGES: page},
        "side": {MEMORY: GIB},
        "late": {MEMORY: 7 * GIB, PAGES: page},
        "big": {MEMORY: 7 * GIB},
        "own": {MEMORY: 2 * GIB},
        "one": {MEMORY: 5 * GIB, PAGES: page},
        "two": {MEMORY: 5 * GIB, PAGES: page},
    }
    assert ledger.pod_held == {"p": (Block(2, PAGES, page), Block(2, MEMORY, 8 * GIB))}
    assert ledger.nodes[1].tables[MEMORY].reserved == 8 * GIB
    assert pinned_containers(made) == ("early", "side", "late", "big", "own")
    assert retain(ledger, ()).nodes == idle(16, 16, pages={0: 1, 1: 1}).nodes


@pytest.mark.parametrize(
    ("made", "error"),
    [
        pytest.param(
            whole(pod("p", app("a", "4Gi"), sharing("b")), "4Gi"),
            "pod rejected, sum of exclusive container memory requests equals pod budget, "
            "leaving no memory for shared containers",
            id="nothing left for a container",
        ),
        pytest.param(
            whole(pod("p", app("a", "1Gi"), init=[app("s", "4Gi", sidecar=True), sharing("i")]), "4Gi"),
            "pod rejected, pod has shared init containers but no memory available for them",
            id="nothing left for an init container",
        ),
    ],
)
def test_a_pod_that_leaves_nothing_to_share_is_rejected(made, error):
    with pytest.raises(ProviderError) as caught:
        MemoryProvider(AS_ONE).allocate(idle(16), made, None, affinity=ANYWHERE)

    assert (caught.value.reason, caught.value.message) == ("EmptyPodSharedPoolError", error)
    assert MemoryProvider(AS_ONE).hints(idle(16), made, None) == {MEMORY: ()}


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
