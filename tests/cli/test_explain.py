"""``alignup explain``: reason codes, one or all."""

import json

from alignup.align.reason_codes import REASON_CODES
from tests.cli.commands import in_process


def test_a_code_is_explained_with_an_example_and_what_to_do():
    run = in_process("explain", "smtalignmenterror", "OutOfexample.com/gpu")

    text = " ".join(run.stdout.split())
    assert run.returncode == 0
    for code in ("SMTAlignmentError", "OutOfExtendedResources"):
        reason = REASON_CODES[code]
        assert f"{code} {reason.meaning} Example: {reason.example} → {reason.remedy}" in text


def test_all_codes_are_listed():
    run = in_process("explain")

    assert [line.split()[0] for line in run.stdout.splitlines()[1:]] == sorted(REASON_CODES, key=str.lower)


def test_programs_get_the_same_as_a_document():
    document = json.loads(in_process("explain", "-o", "json").stdout)
    one_code = json.loads(in_process("explain", "NoNode", "-o", "json").stdout)

    assert {entry["code"] for entry in document["codes"]} == set(REASON_CODES)
    assert one_code == {"version": 1, "codes": [entry for entry in document["codes"] if entry["code"] == "NoNode"]}


def test_an_unknown_code_gets_a_suggestion():
    near, far = in_process("explain", "TopologyError"), in_process("explain", "-o", "json", "xyz")

    assert (near.returncode, near.stdout) == (2, "")
    assert "Did you mean TopologyAffinityError" in near.stderr
    assert (far.returncode, far.stdout) == (2, "")
    assert "'alignup explain' lists all codes" in far.stderr
