"""Reason codes: everything that the source emits is listed, and everything that is listed is emitted."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.agent.decision_metrics import reason_label
from alignup.align import reason_codes
from alignup.align.fit import InsufficientResource
from alignup.align.reason_codes import REASON_CODES, find_reason
from alignup.align.workload.names import CPU, EPHEMERAL_STORAGE, MEMORY
from tools.reasons import PAGE, page

SOURCE = Path(reason_codes.__file__).parents[1]
LIST = Path(reason_codes.__file__)
#: Constant → code.
NAMES = {name: value for name, value in vars(reason_codes).items() if isinstance(value, str) and value in REASON_CODES}

#: What carries a code, and which of its arguments that is: a position, and a keyword.
CARRIERS = {
    "Rejection": (0, "reason"),
    "FitFailure": (0, "reason"),
    "ProviderError": (None, "reason"),
    "RunRejectedError": (0, "reason"),
    "WriteEvent": (1, "reason"),
    "PodFinding": (0, "code"),
    "error": (2, "code"),
    "warning": (2, "code"),
    "note": (2, "code"),
}
IN_DOCTOR_ONLY = ("error", "warning", "note")


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        if path != LIST and not {"wire", "testing"} & set(path.parts):
            yield path, ast.parse(path.read_text("utf-8"))


def emitted_codes(path: Path, tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield where a code is, and the expression for it."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        in_doctor = "doctor" in path.parts
        if name == "note" and not in_doctor and getattr(node.func, "attr", "") == "note":  # ObjectEvents.note
            yield f"{path}:{node.lineno}", node.args[1]
            continue
        if name not in CARRIERS or (name in IN_DOCTOR_ONLY and (not in_doctor or not isinstance(node.func, ast.Name))):
            continue
        position, keyword = CARRIERS[name]
        by_keyword = [argument.value for argument in node.keywords if argument.arg == keyword]
        by_position = node.args[position : position + 1] if position is not None else []
        for argument in (*by_keyword, *by_position):
            yield f"{path}:{node.lineno}", argument


def test_no_code_is_written_where_it_is_emitted():
    """A code that is not a name, or an attribute that had one before, could be missing in the list."""
    sites = [site for path, tree in modules() for site in emitted_codes(path, tree)]

    assert [place for place, code in sites if isinstance(code, ast.Constant | ast.JoinedStr)] == []
    assert len(sites) > 60


def test_every_finding_of_doctor_has_a_code():
    for path, tree in modules():
        if "doctor" in path.parts:
            calls = [
                node.lineno
                for node in ast.walk(tree)
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IN_DOCTOR_ONLY
            ]
            assert len(calls) == len(list(emitted_codes(path, tree))), path


def test_every_listed_code_is_emitted():
    used = set()
    for _, tree in modules():
        imported = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "alignup.align.reason_codes":
                imported |= {alias.name for alias in node.names}
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id in imported:
                used.add(node.id)
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "reason_codes":
                used.add(node.attr)

    assert set(NAMES) - used == set()
    assert set(NAMES.values()) == set(REASON_CODES)


def test_codes_are_spelled_in_the_list_only():
    spelled = {code for code in REASON_CODES if len(re.findall("[A-Z]+[a-z]+", code)) > 1}
    literals = [
        (str(path), node.value)
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in spelled
    ]

    assert literals == []


@pytest.mark.parametrize("code", sorted(REASON_CODES))
def test_codes_and_their_texts_have_one_form(code):
    reason = REASON_CODES[code]

    assert re.fullmatch(r"[A-Z][A-Za-z]+|OutOf[a-z-]+", code)
    for text in (reason.meaning, reason.example, reason.remedy):
        assert text.endswith((".", "?"))
        assert not text.startswith(" ")
    assert reason.meaning[0].isupper()


def test_the_page_has_the_list():
    assert PAGE.read_text("utf-8") == page(), "run make reasons"


@given(st.text() | st.sampled_from(sorted(REASON_CODES)) | st.text().map("OutOf{}".format))
def test_labels_of_metrics_are_codes(reason):
    assert reason_label(reason) in REASON_CODES


@pytest.mark.parametrize("resource", [CPU, MEMORY, EPHEMERAL_STORAGE, "pods", "hugepages-2Mi", "example.com/gpu"])
def test_the_reason_of_every_resource_has_an_entry(resource):
    reason = find_reason(InsufficientResource(resource, 2, 1, 2).reason)

    assert reason is not None
    assert reason.code == reason_label(f"OutOf{resource}")


def test_codes_are_found_in_any_case():
    assert find_reason("topologyaffinityerror") is REASON_CODES["TopologyAffinityError"]
    assert find_reason("OutOfMind") is None
