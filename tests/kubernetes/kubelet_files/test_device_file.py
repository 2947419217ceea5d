"""The device manager's state file, beyond the conformance vectors."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import StateError
from alignup.kubernetes.kubelet_files.device_file import DeviceEntry, DeviceState, dump, parse

ids = st.lists(st.text(), max_size=3).map(tuple)
states = st.builds(
    DeviceState,
    entries=st.lists(
        st.builds(
            DeviceEntry,
            uid=st.text(),
            container=st.text(),
            resource=st.text(),
            devices=st.dictionaries(st.integers(-1, 12), ids, max_size=3),
            response=st.binary(max_size=20),
        ),
        max_size=3,
    ).map(tuple),
    registered=st.dictionaries(st.text(), st.none() | ids, max_size=3),
)


@given(states)
def test_a_written_file_reads_back(state):
    assert parse(dump(state), path="x") == state


def test_nodes_are_sorted_as_text_in_the_file_and_as_numbers_for_the_checksum():
    entry = DeviceEntry(uid="u", container="c", resource="r", devices={2: ("b",), 10: ("a",), -1: ()})

    text = dump(DeviceState(entries=(entry,)))

    assert b'"DeviceIDs":{"-1":[],"10":["a"],"2":["b"]}' in text


def test_a_device_on_two_nodes_is_listed_under_both():
    entry = DeviceEntry(uid="u", container="c", resource="r", devices={0: ("a", "b"), 1: ("a",), -1: ("c",)})

    assert entry.nodes == {"a": {0, 1}, "b": {0}, "c": set()}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param(lambda text: text[:-1], "unexpected end of JSON input", id="truncated"),
        pytest.param(lambda text: text.replace(b"dev-0", b"dev-1"), "checkpoint is corrupted", id="another device"),
        pytest.param(lambda text: b"{}", "checkpoint is corrupted", id="an empty object"),
        pytest.param(
            lambda text: text.replace(b'"uid"', b"7"),
            "json: cannot unmarshal number into Go struct field PodDevicesEntry.Data.PodDeviceEntries.PodUID "
            "of type string",
            id="a number instead of a uid",
        ),
    ],
)
def test_an_invalid_file_is_an_error_that_names_the_consequence(change, why):
    entry = DeviceEntry(uid="uid", container="c", resource="r", devices={0: ("dev-0",)})
    text = change(dump(DeviceState(entries=(entry,))))

    with pytest.raises(StateError) as caught:
        parse(text, path="/k/file")

    assert str(caught.value) == (
        f'could not read the device manager checkpoint file "/k/file": {why}; '
        "a kubelet continues without it and forgets which container holds which devices"
    )


def test_members_may_have_any_order():
    state = DeviceState(registered={"r": ("a",)})
    file = json.loads(dump(state))

    assert parse(json.dumps(dict(reversed(file.items())), indent=1).encode(), path="x") == state
