"""Families of device hints: the same hints as counting set by set, the same answers as their list."""

from hypothesis import given
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.devices.hints import CoverageFamily, DeviceInventory, device_family
from alignup.align.hint import AmountFamily, Hint, HintList, MergeInput
from alignup.align.merging.merge import merge
from tests import naive_merge
from tests.align.devices.plain import GPU, counted, gpus, machines
from tests.strategies_hints import node_sets, subsets_of


def test_one_node_a_device_needs_no_coverage():
    inventory = DeviceInventory.of(gpus([0], [1], [0]), machine=0b11)

    family = device_family(inventory, inventory.healthy, resource=GPU, need=2, reusable=0b1)

    assert isinstance(family, AmountFamily)
    assert family.slack is not None


@given(machines(), st.integers(0, 6), st.data())
def test_hints_are_those_counted_set_by_set(machine, need, data):
    nodes, devices = machine
    inventory = DeviceInventory.of(devices, machine=nodes)
    ids = st.sets(st.sampled_from([device.id for device in devices])) if devices else st.just(set())
    free, again = data.draw(ids), data.draw(ids)

    family = device_family(inventory, inventory.find(free), resource=GPU, need=need, reusable=inventory.find(again))

    expected = counted(devices, nodes, free=free, again=again, need=need)
    assert list(HintList.of_family(family) if family else ()) == expected


@given(st.data())
def test_a_coverage_family_equals_its_list(data):
    nodes = data.draw(node_sets(most=5))
    family = data.draw(coverages(nodes))

    listed = HintList.of_family(family)

    assert listed.masks == tuple(mask for mask in listed.masks if family.fits(mask))
    assert (listed.min_width or 0) == family.min_width
    for mask in (0, *data.draw(st.lists(subsets_of(nodes), max_size=4))):
        assert family.fits(mask) == (mask in listed.masks)
        complete = bits.of(node for node in bits.members(nodes) if family.fits(mask | 1 << node))
        assert family.completing_nodes(mask) == complete
        for more in range(1, 4):
            reached = any(
                mask | other in listed.masks
                for other in HintList.of_family(everything(nodes)).masks
                if other.bit_count() <= more
            )
            assert family.may_complete(mask, more=more, among=nodes) >= reached


def test_a_coverage_family_ignores_other_nodes():
    family = CoverageFamily({0b11: 1}, 1, nodes=0b11, preferred_width=1, source=GPU)

    assert not family.fits(0b101)
    assert family.completing_nodes(0b100) == 0
    assert not family.may_complete(0b100, more=1, among=0b11)


@given(st.data())
def test_merging_coverage_families_equals_merging_lists(data):
    nodes = data.draw(node_sets(most=4))
    inputs = [MergeInput(name, data.draw(coverages(nodes))) for name in ("gpu", "nic")]
    inputs = [merge_input for merge_input in inputs if merge_input.hints.min_width]

    merged = merge(inputs, nodes=nodes)
    searched = merge(inputs, nodes=nodes, dense=0)

    assert Hint(merged.nodes, merged.preferred) == naive_merge.merge(inputs, nodes=nodes)
    assert searched[:2] == merged[:2]


@st.composite
def coverages(draw, nodes):
    weights = draw(st.dictionaries(subsets_of(nodes, least=1), st.integers(1, 3), max_size=5))
    need, width = draw(st.integers(0, 8)), draw(st.integers(1, nodes.bit_count()))
    return CoverageFamily(weights, need, nodes=nodes, preferred_width=width, source=GPU)


def everything(nodes):
    return AmountFamily(dict.fromkeys(bits.members(nodes), 1), 1, preferred_width=1)
