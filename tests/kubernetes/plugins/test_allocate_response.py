"""Allocate responses: stored without loss, and merged."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import StateError
from alignup.kubernetes.plugins.allocate_response import AllocateResponse, DeviceSpec, MountSpec
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
