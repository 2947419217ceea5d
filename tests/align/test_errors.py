"""Errors: the message contains everything, and the attributes contain its parts."""

import pytest

from alignup.align.errors import (
    AlignError,
    ConfigurationError,
    DocumentError,
    LocatedProblem,
    MachineError,
    ManifestError,
    PodError,
    Problem,
    ProviderError,
    RestoreError,
    SourceLocation,
    StoreError,
    StoreProblem,
    TraceError,
    WorkLimitError,
)

NAME = Problem("metadata.name", "Required value")
WHOLE = Problem("", "not an object")
LOCATED = LocatedProblem(SourceLocation("pods.yaml", line=3), NAME)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        pytest.param(DocumentError("unexpected end", line=3), "line 3: unexpected end", id="a malformed document"),
        pytest.param(MachineError(["no CPUs", "no nodes"]), "no CPUs; no nodes", id="a contradictory machine"),
        pytest.param(PodError([NAME, WHOLE]), "metadata.name: Required value; not an object", id="an invalid pod"),
        pytest.param(
            ConfigurationError([NAME], stage="load", source="kubelet.yaml", advice="Fix it."),
            "metadata.name: Required value",
            id="a configuration that cannot be loaded",
        ),
        pytest.param(
            ConfigurationError([Problem("field", "one\ntwo")], stage="validation"),
            "one\\ntwo",
            id="at other stages the message is the kubelet's alone, in one line",
        ),
        pytest.param(
            RestoreError(["a: no CPU 3", "b: no CPU 4"], uids=["a", "b"]), "a: no CPU 3; b: no CPU 4", id="pods"
        ),
        pytest.param(
            StoreError("is corrupt", where="state/db", advice="remove it", kind=StoreProblem.UNUSABLE),
            "state/db: is corrupt; remove it",
            id="a corrupt database",
        ),
        pytest.param(
            TraceError("not a number", file="trace.jsonl", line=7, field="cpu"),
            "trace.jsonl:7: cpu: not a number",
            id="a trace with a location",
        ),
        pytest.param(TraceError("no events"), "no events", id="a trace without a location"),
        pytest.param(ManifestError([LOCATED]), "pods.yaml:3: metadata.name: Required value", id="a manifest"),
        pytest.param(
            ManifestError([LocatedProblem(SourceLocation("pods.yaml", document=2), WHOLE)]),
            "pods.yaml, document 2: not an object",
            id="a document of a manifest",
        ),
        pytest.param(WorkLimitError("too many nodes", sources=["gpu"]), "too many nodes", id="too much work"),
    ],
)
def test_the_message_contains_everything(error, message):
    assert isinstance(error, AlignError)
    assert str(error) == message


def test_a_manifest_error_lists_the_first_problems_and_counts_the_others():
    error = ManifestError([LOCATED] * 1234)

    assert error.lines(2) == (str(LOCATED), str(LOCATED), "and 1,232 more")
    assert str(error).endswith("and 1,214 more")


def test_a_store_error_has_parts():
    error = StoreError("is corrupt", where="state", advice="remove it", kind=StoreProblem.UNUSABLE)

    assert (error.message, error.where, error.advice) == ("is corrupt", "state", "remove it")
    assert error.kind is StoreProblem.UNUSABLE


def test_a_provider_error_without_a_reason_is_wrapped_as_in_the_kubelet():
    plain, named = ProviderError("no CPUs"), ProviderError("no CPUs", reason="SMTAlignmentError")

    assert (plain.reason, plain.message) == (
        "UnexpectedAdmissionError",
        "Allocate failed due to no CPUs, which is unexpected",
    )
    assert (named.reason, named.message) == ("SMTAlignmentError", "no CPUs")
