"""What plugins give containers: kept without loss, and put together."""

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import StateError
from alignup.plugins.allocate_response import AllocateResponse, DeviceSpec, MountSpec, merge_responses
from alignup.wire import device_plugin_pb2 as wire

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
mappings = st.dictionaries(texts, texts, max_size=3)
grants = st.builds(
    AllocateResponse,
    envs=mappings,
    mounts=st.lists(st.builds(MountSpec, texts, texts, st.booleans()), max_size=3).map(tuple),
    devices=st.lists(st.builds(DeviceSpec, texts, texts, texts), max_size=3).map(tuple),
    annotations=mappings,
    cdi=st.lists(texts, max_size=3).map(tuple),
)


@given(grants)
def test_nothing_is_lost_on_the_way_to_json_and_back(grant):
    assert AllocateResponse.from_document(json.loads(json.dumps(grant.document()))) == grant


@given(grants)
def test_nothing_is_lost_on_the_wire(grant):
    sent = grant.message().SerializeToString()

    assert AllocateResponse.from_message(wire.ContainerAllocateResponse.FromString(sent)) == grant


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(None, id="nothing"),
        pytest.param([], id="a list"),
        pytest.param({"envs": {}}, id="fields missing"),
        pytest.param({**AllocateResponse().document(), "more": 1}, id="a field too many"),
        pytest.param({**AllocateResponse().document(), "envs": {"A": 1}}, id="a number for a text"),
        pytest.param({**AllocateResponse().document(), "envs": None}, id="nothing for a table"),
        pytest.param({**AllocateResponse().document(), "mounts": [{"container_path": "/a"}]}, id="half a mount"),
        pytest.param({**AllocateResponse().document(), "cdi": [None]}, id="a name that is none"),
    ],
)
def test_what_is_none_is_refused(document):
    with pytest.raises(StateError, match="not what a device plugin gave"):
        AllocateResponse.from_document(document)


GPU = AllocateResponse(
    envs={"A": "gpu", "G": "1"},
    mounts=(MountSpec("/lib", "/gpu/lib"),),
    devices=(DeviceSpec("/dev/null", "/dev/null", "rw"), DeviceSpec("/dev/null", "/dev/null", "rw")),
    annotations={"note": "gpu"},
    cdi=("v.com/c=a",),
)
NIC = AllocateResponse(
    envs={"A": "nic"},
    mounts=(MountSpec("/lib", "/nic/lib"), MountSpec("/etc/nic", "/etc/nic", read_only=True)),
    devices=(DeviceSpec("/dev/nic", "/dev/nic0", "rw"),),
    annotations={"note": "nic", "other": "nic"},
    cdi=("v.com/c=b", "v.com/c=a"),
)


def test_the_first_value_wins(caplog):
    with caplog.at_level(logging.WARNING):
        merged = merge_responses({"example.com/nic": NIC, "example.com/gpu": GPU})

    assert merged == AllocateResponse(
        envs={"A": "gpu", "G": "1"},
        mounts=(MountSpec("/lib", "/gpu/lib"), MountSpec("/etc/nic", "/etc/nic", read_only=True)),
        devices=(DeviceSpec("/dev/null", "/dev/null", "rw"), DeviceSpec("/dev/nic", "/dev/nic0", "rw")),
        annotations={"note": "gpu", "other": "nic"},
        cdi=("v.com/c=a", "v.com/c=b"),
    )
    assert [record.args[:2] for record in caplog.records] == [
        ("environment variable", "A"),
        ("mount", "/lib"),
        ("annotation", "note"),
    ]


@given(st.dictionaries(st.sampled_from("abc"), grants))
def test_nothing_is_made_up_or_said_twice(given_):
    merged = merge_responses(given_)

    said = [grant for _, grant in sorted(given_.items())]
    assert {mount.container_path for mount in merged.mounts} == {one.container_path for g in said for one in g.mounts}
    assert len({mount.container_path for mount in merged.mounts}) == len(merged.mounts)
    assert len({node.container_path for node in merged.devices}) == len(merged.devices)
    assert set(merged.cdi) == {name for grant in said for name in grant.cdi}
    assert merge_responses({"x": merged}) == merged
