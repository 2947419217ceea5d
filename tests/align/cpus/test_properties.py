"""What holds for the CPU provider on every machine, under all options, whatever pods come and go."""

from dataclasses import replace
from itertools import combinations

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from alignup.align import bits
from alignup.align.bits import union
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.cpus.options import CpuOptions, CpuPolicy
from alignup.align.cpus.provider import CpuProvider, select_reserved_cpus
from alignup.align.errors import ProviderError
from alignup.align.hint import AmountFamily
from alignup.align.workload import Pod
from tests.align.cpus.allocation import allocate, cpu_hints
from tests.effort import examples
from tests.strategies import machines
from tests.strategies_pods import aligned, pods


@st.composite
def providers(draw: st.DrawFn, /, *, uniform=False, **fixed) -> CpuProvider:
    """A provider on any machine, under any options that go together."""
    view = draw(machines(max_nodes=4)).kubelet_view()
    if uniform:
        assume(len({core.bit_count() for core in view.core_cpus.values()}) == 1)
    names = ["full_pcpus_only", "distribute_cpus_across_numa", "align_by_socket", "strict_cpu_reservation"]
    chosen = {name: True for name in names if draw(st.booleans())}
    if not chosen.get("distribute_cpus_across_numa"):
        chosen["prefer_align_cpus_by_uncorecache"] = draw(st.booleans())
    options = CpuOptions(**{**chosen, **fixed})
    count = draw(st.integers(0, view.num_cpus // 4))
    if uniform:
        count -= count % view.cpus_per_core
    return CpuProvider(
        view=view,
        policy=CpuPolicy.STATIC,
        options=options,
        reserved=select_reserved_cpus(view, options, count=count),
        pod_level=draw(st.booleans()),
    )


whole_pods = pods(asks=aligned, with_pod_level=False)


@given(providers(full_pcpus_only=False, align_by_socket=False), whole_pods, whole_pods)
def test_hints_are_satisfiable(cpus, first, second):
    """Every hint of a container can be allocated inside its nodes: nothing is reusable, and threads may be single."""
    try:
        ledger = place(cpus, cpus.initial_ledger(), replace(first, uid="first"))
    except ProviderError:
        ledger = cpus.initial_ledger()
    each = second.all_containers[0]

    hints = cpu_hints(cpus, ledger, second, each)

    for nodes in hints.fitting_sets() if isinstance(hints, AmountFamily) else ():
        _, taken = allocate(cpus, ledger, second, each, nodes)
        on = bits.of(node for node, node_cpus in cpus.view.node_cpus.items() if node_cpus & taken)
        assert not on & ~nodes, f"{bits.show(taken)} is not only on {bits.show(nodes)}"


@given(providers(uniform=True, full_pcpus_only=True), st.lists(whole_pods, max_size=6))
def test_no_core_is_split(cpus, wanted):
    """With full-pcpus-only, cores of one size and whole cores reserved, a container owns all of a core or nothing."""
    ledger = cpus.initial_ledger()
    for number, each in enumerate(wanted):
        try:
            ledger = place(cpus, ledger, replace(each, uid=str(number)))
        except ProviderError:
            continue

    for held in ledger.held.values():
        for taken in held.values():
            assert taken == union(core for core in cpus.view.core_cpus.values() if core & taken)


def place(cpus: CpuProvider, ledger: CpuLedger, wanted: Pod) -> CpuLedger:
    """The ledger with all containers of a pod placed."""
    for each in wanted.all_containers:
        ledger, _ = allocate(cpus, ledger, wanted, each, None)
    return ledger


class Life(RuleBasedStateMachine):
    """Pods come and go, containers end, the kubelet restarts: every CPU always has one place."""

    @initialize(cpus=providers())
    def begin(self, cpus):
        self.cpus = cpus
        self.ledger = cpus.initial_ledger()
        self.idle = self.ledger.shared
        self.number = 0

    def new(self, wanted: Pod) -> Pod:
        self.number += 1
        return replace(wanted, uid=str(self.number))

    @rule(wanted=whole_pods, data=st.data())
    def admit(self, wanted, data):
        wanted, ledger = self.new(wanted), self.ledger
        try:
            for each in wanted.all_containers:
                affinity = data.draw(st.none() | st.frozensets(st.sampled_from(self.nodes())).map(bits.of))
                ledger, taken = allocate(self.cpus, ledger, wanted, each, affinity)
                assert taken == (ledger.holds(wanted.uid, each.name) or 0)
        except ProviderError:
            return
        self.ledger = ledger

    @rule(wanted=pods(asks=aligned), affinity=st.none() | st.just(1))
    def admit_as_one(self, wanted, affinity):
        wanted, before = self.new(wanted), self.ledger
        try:
            self.ledger, taken = allocate(self.cpus, before, wanted, None, affinity)
        except ProviderError:
            return
        assert taken == self.ledger.owned(wanted.uid) == self.ledger.pod_held.get(wanted.uid, 0)
        assert allocate(self.cpus, self.ledger, wanted, None, affinity) == (self.ledger, taken)

    @precondition(lambda self: self.ledger.held)
    @rule(data=st.data())
    def end_container(self, data):
        uid = data.draw(st.sampled_from(sorted(self.ledger.held)))
        name = data.draw(st.sampled_from(sorted(self.ledger.held[uid])))
        self.ledger = self.ledger.take_back(uid, name)
        assert self.ledger.holds(uid, name) is None

    @precondition(lambda self: self.ledger.held)
    @rule(data=st.data())
    def end_pod(self, data):
        uid = data.draw(st.sampled_from(sorted(self.ledger.held)))
        before = self.ledger
        self.ledger = self.cpus.release(before, uid)
        assert self.ledger.shared == before.shared | before.owned(uid)

    @rule()
    def restart(self):
        self.ledger = self.cpus.restore_ledger(self.ledger.shared, self.ledger.held, pod_held=self.ledger.pod_held)

    @invariant()
    def nothing_is_lost_and_nothing_given_twice(self):
        owned = [self.ledger.owned(uid) for uid in {*self.ledger.held, *self.ledger.pod_held}]
        assert self.ledger.shared | union(owned) == self.idle
        for cpus, other in combinations([self.ledger.shared, *owned], 2):
            assert not cpus & other
        assert not union(owned) & self.cpus.reserved
        assert self.ledger.lost == 0

    @invariant()
    def counts_are_kept(self):
        for node, node_cpus in self.cpus.view.node_cpus.items():
            assert self.ledger.free[node] == (node_cpus & self.ledger.available).bit_count()

    def nodes(self) -> list[int]:
        return sorted(self.cpus.view.node_cpus)

    def teardown(self):
        if hasattr(self, "ledger"):
            for uid in list(self.ledger.held):
                self.ledger = self.cpus.release(self.ledger, uid)
            assert self.ledger.shared == self.idle


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=examples(25), stateful_step_count=20)
