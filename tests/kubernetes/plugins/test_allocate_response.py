"""Allocate responses: stored without loss, and merged."""

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import StateError
from alignup.kubernetes.plugins.allocate_response import AllocateResponse, DeviceSpec, MountSpec, merge_responses
from alignup.wire import device_plugin_pb2 as wire

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
mappings = st.dictionaries(texts, texts, max_size=3)
responses = st.builds(
    AllocateResponse,
    envs=mappings,
    mounts=st.lists(st.builds(MountSpec, texts, texts, st.booleans()), max_size=3).map(tuple),
    devices=st.lists(st.builds(DeviceSpec, texts, texts, texts), max_size=3).map(tuple),
    annotations=mappings,
    cdi=st.lists(texts, max_size=3).map(tuple),
)


@given(responses)
def test_documents_round_trip(response):
    assert AllocateResponse.from_document(json.loads(json.dumps(response.to_document()))) == response


@given(responses)
def test_messages_round_trip(response):
    sent = response.to_message().SerializeToString()

    assert AllocateResponse.from_message(wire.ContainerAllocateResponse.FromString(sent)) == response


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(None, id="null"),
        pytest.param([], id="a list"),
        pytest.param({"envs": {}}, id="missing keys"),
        pytest.param({**AllocateResponse().to_document(), "more": 1}, id="an unknown key"),
        pytest.param({**AllocateResponse().to_document(), "envs": {"A": 1}}, id="a number instead of a string"),
        pytest.param({**AllocateResponse().to_document(), "envs": None}, id="null instead of an object"),
        pytest.param(
            {**AllocateResponse().to_document(), "mounts": [{"container_path": "/a"}]}, id="an incomplete mount"
        ),
        pytest.param({**AllocateResponse().to_document(), "cdi": [None]}, id="null instead of a name"),
    ],
)
def test_invalid_documents_are_rejected(document):
    with pytest.raises(StateError, match="not a stored device plugin response"):
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


@given(st.dictionaries(st.sampled_from("abc"), responses))
def test_merging_neither_invents_nor_repeats(given_):
    merged = merge_responses(given_)

    ordered = [response for _, response in sorted(given_.items())]
    assert {mount.container_path for mount in merged.mounts} == {
        one.container_path for g in ordered for one in g.mounts
    }
    assert len({mount.container_path for mount in merged.mounts}) == len(merged.mounts)
    assert len({node.container_path for node in merged.devices}) == len(merged.devices)
    assert set(merged.cdi) == {name for response in ordered for name in response.cdi}
    assert merge_responses({"x": merged}) == merged
