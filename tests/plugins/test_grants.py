"""What plugins give containers: kept without loss, and put together."""

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import StateError
from alignup.plugins.grants import DeviceNode, Grant, Mount, merge
from alignup.wire import device_plugin_pb2 as wire

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
mappings = st.dictionaries(texts, texts, max_size=3)
grants = st.builds(
    Grant,
    envs=mappings,
    mounts=st.lists(st.builds(Mount, texts, texts, st.booleans()), max_size=3).map(tuple),
    devices=st.lists(st.builds(DeviceNode, texts, texts, texts), max_size=3).map(tuple),
    annotations=mappings,
    cdi=st.lists(texts, max_size=3).map(tuple),
)


@given(grants)
def test_nothing_is_lost_on_the_way_to_json_and_back(grant):
    assert Grant.of_document(json.loads(json.dumps(grant.document()))) == grant


@given(grants)
def test_nothing_is_lost_on_the_wire(grant):
    sent = grant.message().SerializeToString()

    assert Grant.of_message(wire.ContainerAllocateResponse.FromString(sent)) == grant


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(None, id="nothing"),
        pytest.param([], id="a list"),
        pytest.param({"envs": {}}, id="fields missing"),
        pytest.param({**Grant().document(), "more": 1}, id="a field too many"),
        pytest.param({**Grant().document(), "envs": {"A": 1}}, id="a number for a text"),
        pytest.param({**Grant().document(), "envs": None}, id="nothing for a table"),
        pytest.param({**Grant().document(), "mounts": [{"container_path": "/a"}]}, id="half a mount"),
        pytest.param({**Grant().document(), "cdi": [None]}, id="a name that is none"),
    ],
)
def test_what_is_none_is_refused(document):
    with pytest.raises(StateError, match="not what a device plugin gave"):
        Grant.of_document(document)


GPU = Grant(
    envs={"A": "gpu", "G": "1"},
    mounts=(Mount("/lib", "/gpu/lib"),),
    devices=(DeviceNode("/dev/null", "/dev/null", "rw"), DeviceNode("/dev/null", "/dev/null", "rw")),
    annotations={"note": "gpu"},
    cdi=("v.com/c=a",),
)
NIC = Grant(
    envs={"A": "nic"},
    mounts=(Mount("/lib", "/nic/lib"), Mount("/etc/nic", "/etc/nic", read_only=True)),
    devices=(DeviceNode("/dev/nic", "/dev/nic0", "rw"),),
    annotations={"note": "nic", "other": "nic"},
    cdi=("v.com/c=b", "v.com/c=a"),
)


def test_the_first_value_wins(caplog):
    with caplog.at_level(logging.WARNING):
        merged = merge({"example.com/nic": NIC, "example.com/gpu": GPU})

    assert merged == Grant(
        envs={"A": "gpu", "G": "1"},
        mounts=(Mount("/lib", "/gpu/lib"), Mount("/etc/nic", "/etc/nic", read_only=True)),
        devices=(DeviceNode("/dev/null", "/dev/null", "rw"), DeviceNode("/dev/nic", "/dev/nic0", "rw")),
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
    merged = merge(given_)

    said = [grant for _, grant in sorted(given_.items())]
    assert {mount.container_path for mount in merged.mounts} == {one.container_path for g in said for one in g.mounts}
    assert len({mount.container_path for mount in merged.mounts}) == len(merged.mounts)
    assert len({node.container_path for node in merged.devices}) == len(merged.devices)
    assert set(merged.cdi) == {name for grant in said for name in grant.cdi}
    assert merge({"x": merged}) == merged
