"""Pods coming, starting, going, and the host restarting, in any order: what must hold after every step."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from alignup.align import bits
from alignup.align.errors import ProviderError
from alignup.align.hint import Hint, HintsByResource, subsets
from alignup.align.memory.ledger import Block, MemoryLedger
from alignup.align.memory.provider import MemoryPolicy, MemoryProvider, MemorySettings
from alignup.align.workload import Container, Pod, Resources
from tests.align.memory.model import MEMORY, PAGES, app, idle, nodes_of, retain, spelled
from tests.effort import examples
from tests.strategies_pods import amounts

SETTINGS = MemorySettings(MemoryPolicy.STATIC, pod_level_managers=True)

sizes = st.sampled_from(("1Mi", "1Gi", "2Gi", "3Gi", "5Gi", "9Gi"))
pages = st.none() | st.sampled_from(("2Mi", "512Mi", "1Gi"))


@st.composite
def pods(draw: st.DrawFn, uid: str) -> Pod:
    """A Guaranteed pod: init containers, sidecars, containers; sometimes with pod-level resources instead."""
    init = tuple(
        app(f"i{number}", draw(sizes), draw(pages), sidecar=draw(st.booleans()))
        for number in range(draw(st.integers(0, 3)))
    )
    if draw(st.integers(0, 4)) == 0:
        requests = amounts({"cpu": "4", MEMORY: draw(sizes)} | ({PAGES: "2Mi"} if draw(st.booleans()) else {}))
        shared = (app("c0", "1Mi"), Container("c1"))
        return Pod(name=uid, uid=uid, init=init[:1], containers=shared, resources=Resources(requests, requests))
    containers = tuple(app(f"c{number}", draw(sizes), draw(pages)) for number in range(draw(st.integers(1, 2))))
    return Pod(name=uid, uid=uid, init=init, containers=containers)


class Host(RuleBasedStateMachine):
    """A host whose ledger is followed step by step."""

    admitted = Bundle("admitted")

    @initialize(gib=st.lists(st.sampled_from((0, 4, 8)), min_size=1, max_size=4), count=st.sampled_from((0, 256, 1024)))
    def boot(self, gib: list[int], count: int) -> None:
        self.idle = idle(*gib, pages=dict.fromkeys(range(0, len(gib), 2), count))
        self.ledger = self.idle
        self.number = 0

    @rule(target=admitted, data=st.data())
    def admit(self, data: st.DataObject):
        """Place a pod, container by container or as one piece; a rejection leaves the ledger as it was."""
        self.number += 1
        pod = data.draw(pods(f"p{self.number}"))
        before = self.ledger
        ledger = before
        try:
            if pod.has_pod_level_resources:
                affinity = self.affinity(data, MemoryProvider(SETTINGS).hints(ledger, pod, None))
                ledger = MemoryProvider(SETTINGS).allocate(ledger, pod, None, affinity=affinity)
            else:
                for container in pod.all_containers:
                    ledger = self.place(data, ledger, pod, container)
        except ProviderError:
            assert self.ledger == before
            return multiple()
        self.ledger = ledger
        return pod

    def place(self, data: st.DataObject, ledger: MemoryLedger, pod: Pod, container: Container) -> MemoryLedger:
        """Place one container; what was hinted at must be granted."""
        answer = MemoryProvider(SETTINGS).hints(ledger, pod, container)
        hinted = spelled(answer)
        affinity = self.affinity(data, answer)
        try:
            placed = MemoryProvider(SETTINGS).allocate(ledger, pod, container, affinity=affinity)
        except ProviderError:
            assert affinity not in hinted, "a hint that cannot be satisfied"
            raise
        if affinity in hinted:
            assert nodes_of(placed, pod.uid, container.name) == affinity.nodes
        return placed

    def affinity(self, data: st.DataObject, answer: HintsByResource) -> Hint:
        """One of the hints, or none, or nodes chosen by others."""
        hints = [Hint(None, preferred=False), Hint(None, preferred=True)]
        hints += 2 * spelled(answer)
        hints += [Hint(mask, preferred=False) for mask in subsets(bits.of(self.idle.nodes))]
        return data.draw(st.sampled_from(hints))

    @rule(pod=admitted, data=st.data())
    def start(self, pod: Pod, data: st.DataObject) -> None:
        """Start a container: ordinary init containers before it are done."""
        if not pod.has_pod_level_resources:
            self.ledger = MemoryProvider().start_container(
                self.ledger, pod, data.draw(st.sampled_from(pod.all_containers))
            )

    @rule(pod=consumes(admitted))
    def remove(self, pod: Pod) -> None:
        for container in pod.all_containers:
            self.ledger = self.ledger.release(pod.uid, container.name)
        assert pod.uid not in self.ledger.held
        assert pod.uid not in self.ledger.pod_held

    @rule()
    def restart(self) -> None:
        """What this host wrote, it accepts."""
        before = self.ledger
        self.ledger = before.restored(self.idle, pod_level=True)
        assert (self.ledger.nodes, self.ledger.held) == (before.nodes, before.held)

    def charged(self) -> list[Block]:
        charged_blocks = [block for blocks in self.ledger.pod_held.values() for block in blocks]
        rest = [
            block
            for uid, containers in self.ledger.held.items()
            if uid not in self.ledger.pod_held
            for blocks in containers.values()
            for block in blocks
        ]
        return charged_blocks + rest

    @invariant()
    def nothing_is_lost(self) -> None:
        """Every byte of every node and type is free or reserved, and each group reserves what its blocks hold."""
        held: Counter[tuple[bits.NodeSet, str]] = Counter()
        for block in self.charged():
            held[block.nodes, block.type] += block.size
        reserved: Counter[tuple[bits.NodeSet, str]] = Counter()
        for node in self.ledger.nodes.values():
            for type_, table in node.tables.items():
                assert table.free >= 0 <= table.reserved
                assert table.free + table.reserved == table.allocatable
                reserved[node.cells, type_] += table.reserved
        assert +held == +reserved

    @invariant()
    def groups_are_consistent(self) -> None:
        """Each node belongs to the one group of all blocks that touch it, and counts them; an idle node to itself."""
        blocks = self.charged()
        for id_, node in self.ledger.nodes.items():
            touching = [block.nodes for block in blocks if block.nodes >> id_ & 1]
            assert node.assignments == len(touching)
            assert {node.cells} == (set(touching) or {1 << id_})

    def teardown(self) -> None:
        """Released, the machine is as it was."""
        if hasattr(self, "ledger"):
            assert retain(self.ledger, ()).nodes == self.idle.nodes


TestHost = Host.TestCase
TestHost.settings = settings(max_examples=examples(60), stateful_step_count=20, deadline=None)
