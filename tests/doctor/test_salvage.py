"""Salvage of damaged files: the damage is described, and nothing is invented."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.settings import FeatureGates
from alignup.doctor.salvage import SalvageSource, readable_prefix, salvage, salvage_devices
from alignup.kubernetes.kubelet_files import state_files
from alignup.kubernetes.kubelet_files.state_files import CpuState, DeviceEntry, DeviceState

GATES = FeatureGates({"PodLevelResourceManagers": True})
STATE = CpuState(
    policy="static",
    default=bits.parse("0-3"),
    entries={"a": {"app": bits.parse("4-5")}, "b": {"app": bits.parse("6"), "side": bits.parse("7")}},
    pod_entries={"b": bits.parse("6-7")},
)
FILE = state_files.dump_cpu_state(STATE, gates=GATES)
SUMS = json.loads(FILE)
CONTENTS, COPY, UNCHECKED_CONTENTS, UNCHECKED_COPY, REST, NOTHING = SalvageSource
LISTS = {"a": {"app": "4-5"}, "b": {"app": "6", "side": "7"}}


def changed(**members: object) -> bytes:
    """The file with changed members; ``None`` removes one."""
    kept = {**json.loads(FILE), **members}
    return json.dumps({key: value for key, value in kept.items() if value is not None}).encode()


def older(**members: object) -> bytes:
    """A file of a version without contents."""
    return json.dumps({"policyName": "static", "defaultCpuSet": "0-3", "entries": LISTS, **members}).encode()


@pytest.mark.parametrize(
    ("text", "source", "damage"),
    [
        pytest.param(FILE, CONTENTS, "", id="nothing wrong"),
        pytest.param(b"", NOTHING, "the file is empty", id="empty"),
        pytest.param(b" \n", NOTHING, "the file is empty", id="blank"),
        pytest.param(b"\0" * 40, NOTHING, "the file contains only zeros, as after a power failure", id="zeros"),
        pytest.param(b"[1]", NOTHING, "the file is JSON, but not an object", id="no object"),
        pytest.param(
            b"oops", NOTHING, "the file is not JSON: invalid character 'o' looking for beginning of value", id="no JSON"
        ),
        pytest.param(FILE[:-5], CONTENTS, f"the file is cut off after {len(FILE) - 5} bytes", id="end cut"),
        pytest.param(FILE[:200], COPY, "the file is cut off after 200 bytes", id="contents cut off"),
        pytest.param(FILE[:100], REST, "the file is cut off after 100 bytes", id="cut off in the copy"),
        pytest.param(FILE[:30], REST, "the file is cut off after 30 bytes", id="cut off early"),
        pytest.param(
            FILE + b"}",
            CONTENTS,
            "there is extra data after the end of the object: invalid character '}' after top-level value",
            id="more at the end",
        ),
        pytest.param(
            FILE.replace(b'"entries"', b'entries"', 1),
            CONTENTS,
            "the file is not JSON: invalid character 'e' looking for beginning of object key string",
            id="copy broken, contents whole",
        ),
        pytest.param(
            changed(dataChecksum=1),
            CONTENTS,
            f"the checksum of the contents is wrong: 1 in the file, {SUMS['dataChecksum']} computed",
            id="contents confirmed by the copy",
        ),
        pytest.param(
            changed(dataChecksum=1, checksum=1),
            UNCHECKED_CONTENTS,
            f"the checksum of the contents is wrong: 1 in the file, {SUMS['dataChecksum']} computed",
            id="confirmed by no checksum",
        ),
        pytest.param(
            changed(data="{"), COPY, "the contents cannot be read: unexpected end of JSON input", id="contents broken"
        ),
        pytest.param(
            changed(data="{", checksum=1),
            UNCHECKED_COPY,
            "the contents cannot be read: unexpected end of JSON input",
            id="contents broken, copy unconfirmed",
        ),
        pytest.param(
            changed(data=None), COPY, "the contents are missing; only their checksum is left", id="no contents"
        ),
        pytest.param(older(checksum=7), UNCHECKED_CONTENTS, "the checksum 7 does not match the contents", id="old"),
        pytest.param(older(), CONTENTS, "", id="old without a checksum"),
    ],
)
def test_damage_is_described_and_the_best_contents_are_used(text, source, damage):
    salvaged = salvage(state_files.CPU_FORMAT, text, gates=GATES)

    assert (salvaged.source, salvaged.damage) == (source, (damage,) if damage else ())
    assert {
        uid: containers for uid, containers in (salvaged.contents["entries"] or {}).items() if containers != LISTS[uid]
    } == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param(FILE, "", id="unchanged"),
        pytest.param(
            changed(checksum=7),
            f"the checksum of the copy for older kubelets is wrong: 7 instead of {SUMS['checksum']}",
            id="checksum",
        ),
        pytest.param(
            changed(defaultCpuSet="0"), "the copy for older kubelets differs from the contents", id="something else"
        ),
        pytest.param(older(), "", id="no copy"),
    ],
)
def test_a_changed_copy_is_noticed(text, problem):
    assert salvage(state_files.CPU_FORMAT, text, gates=GATES).copy_problem == problem


@pytest.mark.parametrize(
    ("text", "part"),
    [
        pytest.param('{"a": 1, "b": [2]}', {"a": 1, "b": [2]}, id="whole"),
        pytest.param('{"a": 1, "b": 2', {"a": 1}, id="a number may be incomplete"),
        pytest.param('{"a": "1-', {}, id="a string must be complete"),
        pytest.param('{"a": {"b": {"c": {"d": 1}, "e": {"f"', {"a": {"b": {"c": {"d": 1}}}}, id="complete parts stay"),
        pytest.param('{"a": {"b": {"c": {"d": 1, "e"', {"a": {"b": {}}}, id="a partial container is dropped"),
        pytest.param('{"a": 1, b: 2}', {"a": 1}, id="no key"),
        pytest.param('{"a": 1 "b": 2}', {"a": 1}, id="no comma"),
        pytest.param('{"a" 1}', {}, id="no colon"),
        pytest.param('{"a": tru', {}, id="half a literal"),
        pytest.param('{"a": 1.2.3, "b": 1}', {}, id="no number"),
        pytest.param('{"a": [1, 2, [3, 4', {"a": [1, 2]}, id="lists"),
        pytest.param("[" * 9999, {}, id="nested too deep"),
        pytest.param("7", {}, id="no object"),
    ],
)
def test_complete_parts_of_a_broken_text_are_read(text, part):
    assert json.loads(readable_prefix(text.encode()).json) == part


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=5), json_values, max_size=4), st.data())
def test_nothing_is_invented_for_a_truncated_text(value, data):
    text = json.dumps(value)
    cut = data.draw(st.integers(0, len(text)))

    part = readable_prefix(text[:cut].encode())

    assert part.whole == (cut == len(text))
    assert inside(json.loads(part.json), value)


def inside(part: object, whole: object) -> bool:
    """Whether *part* is *whole* without some members or items."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and inside(member, whole[key]) for key, member in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) <= len(whole) and all(map(inside, part, whole))
    return part == whole and type(part) is type(whole)


@given(st.binary(max_size=300))
def test_any_bytes_are_described(data):
    salvaged = salvage(state_files.CPU_FORMAT, data, gates=GATES)

    assert salvaged.damage or salvaged.source is SalvageSource.CONTENTS
    salvage_devices(data)


class TestDevices:
    """The device manager's file, whose entries are independent."""

    STATE = DeviceState(
        entries=(
            DeviceEntry(uid="a", container="c", resource="x/gpu", devices={0: ("g0", "g1")}, response=b"\x01"),
            DeviceEntry(uid="b", container="c", resource="x/gpu", devices={-1: ("g2",)}),
        ),
        registered={"x/gpu": ("g0", "g1", "g2")},
    )
    TEXT = state_files.dump_device_state(STATE)

    def test_a_valid_file_is_read(self):
        assert salvage_devices(self.TEXT) == (self.STATE, 0)

    def test_a_truncated_file_keeps_its_complete_entries(self):
        cut = self.TEXT.index(b'"g2"')

        assert salvage_devices(self.TEXT[:cut]) == (DeviceState(entries=self.STATE.entries[:1]), 0)

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            pytest.param(b'"PodUID":"b"', b'"PodUID":7', id="an invalid name"),
            pytest.param(b'{"-1":["g2"]}', b'{"-1":[7]}', id="an invalid id"),
            pytest.param(b'{"-1":["g2"]}', b'{"x":["g2"]}', id="an invalid node"),
            pytest.param(b'{"-1":["g2"]}', b"null", id="no devices"),
            pytest.param(b'"AllocResp":"AQ=="', b'"AllocResp":"%"', id="an invalid response"),
        ],
    )
    def test_invalid_entries_are_counted(self, old, new):
        state, unread = salvage_devices(self.TEXT.replace(old, new))

        assert (len(state.entries), unread) == (1, 1)
