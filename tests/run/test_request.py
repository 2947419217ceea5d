"""Run requests, and run records as JSON documents."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import EnforceError
from alignup.run.process import ProcessIdentity
from alignup.run.request import RunRecord

SETS = st.integers(0, 1 << 70)
TEXTS = st.text(max_size=12)
RECORDS = st.builds(
    RunRecord,
    uid=TEXTS,
    name=TEXTS,
    runner=st.just(ProcessIdentity.of(os.getpid())),
    command=st.lists(TEXTS, max_size=3).map(tuple),
    since=st.floats(0, 1e12),
    cpus=SETS,
    exclusive=st.booleans(),
    memory=SETS,
    devices=st.dictionaries(TEXTS, st.dictionaries(TEXTS, st.none() | SETS, max_size=2), max_size=2),
    cgroup=st.none() | st.just(Path("/sys/fs/cgroup/alignup-x")),
    agent=TEXTS,
    started=st.sampled_from([(), (ProcessIdentity.of(os.getpid()),)]),
)


@given(RECORDS)
def test_documents_round_trip(record):
    assert RunRecord.from_document(json.loads(json.dumps(record.to_document()))) == record


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({}, id="empty"),
        pytest.param({"version": 2}, id="another version"),
        pytest.param([], id="not an object"),
        pytest.param({"version": 1, "uid": "x", "name": "x", "runner": {}}, id="missing keys"),
    ],
)
def test_invalid_documents_are_rejected(document):
    with pytest.raises(EnforceError):
        RunRecord.from_document(document)
