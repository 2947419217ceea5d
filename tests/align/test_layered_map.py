"""Large immutable maps: they behave like dicts, and a change does not copy them."""

import pickle
from collections.abc import Mapping
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align import layered_map
from alignup.align.layered_map import MAX_LAYER, MAX_PLAIN, LayeredMap, changed_keys, with_item, without_item

LARGE: Mapping[str, int] = {f"pod-{number}": number for number in range(MAX_PLAIN)}

keys = st.sampled_from(["new", "newer", "pod-0", "pod-1", f"pod-{MAX_PLAIN - 1}"])
changes = st.lists(st.tuples(keys, st.none() | st.integers(0, 3)), max_size=12)


@given(changes, st.integers(1, 4))
def test_a_layered_map_is_a_dict_after_any_changes(steps, layer):
    expected, mapping, versions = dict(LARGE), LARGE, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layered_map, "MAX_LAYER", layer)
        patch.setattr(layered_map, "MAX_PLAIN", 2)
        for key, value in steps:
            versions.append((mapping, dict(expected)))
            if value is not None:
                expected[key] = value
                mapping = with_item(mapping, key, value)
            elif key in expected:
                del expected[key]
                mapping = without_item(mapping, key)
    for version, contents in [*versions, (mapping, expected)]:
        assert list(version.items()) == list(contents.items())
        assert list(reversed(version)) == list(reversed(contents))  # type: ignore[arg-type] # dicts and layered maps
        assert (len(version), version.get("new"), "pod-0" in version) == (
            len(contents),
            contents.get("new"),
            "pod-0" in contents,
        )


@given(changes, changes, st.integers(1, 4))
def test_changed_keys_are_those_with_other_objects(first, second, layer):
    def change(mapping, steps):
        for key, value in steps:
            if value is not None:
                mapping = with_item(mapping, key, [value])
            elif key in mapping:
                mapping = without_item(mapping, key)
        return mapping

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layered_map, "MAX_LAYER", layer)
        patch.setattr(layered_map, "MAX_PLAIN", 2)
        before = change({key: [value] for key, value in LARGE.items()}, first)
        after = change(before, second)

        changed = changed_keys(before, after)

    assert changed == {key for key in {*before, *after} if before.get(key) is not after.get(key)}
    assert changed_keys(after, after) == set()


def test_changed_keys_of_a_large_map_are_found_in_its_layer(monkeypatch):
    before = with_item(LARGE, "new", 1)
    after = without_item(with_item(before, "newer", 2), "pod-7")
    monkeypatch.setattr(LayeredMap, "to_dict", lambda _: pytest.fail("the whole map was read"))

    assert changed_keys(before, after) == {"newer", "pod-7"}
    assert changed_keys(LARGE, before) == {"new"}


def test_small_maps_are_dicts():
    small = with_item({"a": 1}, "b", 2)

    assert small == {"a": 1, "b": 2}
    assert type(small) is dict
    assert without_item(small, "a") == {"b": 2}
    with pytest.raises(KeyError):
        without_item(small, "c")


def test_what_a_large_map_does_not_have_cannot_be_removed():
    with pytest.raises(KeyError):
        without_item(with_item(LARGE, "new", 1), "newer")


def test_large_maps_share_their_entries_until_the_layer_is_full():
    mapping = LARGE
    for number in range(MAX_LAYER):
        mapping = with_item(mapping, f"new-{number}", number)
        assert isinstance(mapping, LayeredMap)
    full = with_item(mapping, "one more", 1)

    assert type(full) is dict
    assert len(full) == MAX_PLAIN + MAX_LAYER + 1
    assert len(LARGE) == MAX_PLAIN


def test_missing_keys():
    mapping = without_item(with_item(LARGE, "new", 1), "pod-0")

    for key in ("pod-0", "unknown"):
        assert key not in mapping
        assert mapping.get(key, 7) == 7
        with pytest.raises(KeyError, match=key):
            mapping[key]
        with pytest.raises(KeyError, match=key):
            without_item(mapping, key)
    assert mapping["new"] == 1


def test_any_mapping_can_be_changed():
    mapping = with_item(with_item(LARGE, "a", 1), "b", 2)

    assert mapping == {**LARGE, "a": 1, "b": 2}
    assert mapping == with_item(with_item(LARGE, "a", 1), "b", 2)
    assert mapping == mapping  # noqa: PLR0124
    assert mapping != LARGE
    assert mapping.keys() == {*LARGE, "a", "b"}
    assert list(mapping.values())[-2:] == [1, 2]
    assert repr(mapping) == repr({**LARGE, "a": 1, "b": 2})
    assert pickle.loads(pickle.dumps(mapping)) == mapping  # noqa: S301


def test_a_view_of_another_mapping_is_copied():
    source = dict(LARGE)
    mapping = with_item(MappingProxyType(source), "a", 1)
    source.clear()

    assert len(mapping) == len(list(mapping)) == MAX_PLAIN + 1
