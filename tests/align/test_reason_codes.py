"""Reason codes: everything that the source emits is listed, and everything that is listed is emitted."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

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
#: What a module has in its text that can emit or spell a code; other modules are not parsed.
EMITS = re.compile("|".join(("reason_codes", r"\.note\(", *CARRIERS.keys() - {*IN_DOCTOR_ONLY}, *REASON_CODES)))


class Source(NamedTuple):
    """What a module has that can emit a code: most of its tree is not kept."""

    path: Path
    calls: list[ast.Call]
    names: set[str]  #: of the list, which are imported and used, or attributes of its module
    texts: set[object]


@cache
def modules() -> list[Source]:
    paths = [path for path in sorted(SOURCE.rglob("*.py")) if not {"wire", "testing"} & set(path.parts)]
    return [
        read(path)
        for path in paths
        if path != LIST and ("doctor" in path.parts or EMITS.search(path.read_text("utf-8")))
    ]


def read(path: Path) -> Source:
    calls: list[ast.Call] = []
    imported: set[str] = set()
    names: set[str] = set()
    attributes: set[str] = set()
    texts: set[object] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in CARRIERS:
                calls.append(node)
            case ast.Name(id=name) if name in NAMES:
                names.add(name)
            case ast.Attribute(value=ast.Name(id="reason_codes"), attr=name):
                attributes.add(name)
            case ast.ImportFrom(module="alignup.align.reason_codes", names=aliases):
                imported |= {alias.name for alias in aliases}
            case ast.Constant(value=str(text)):
                texts.add(text)
    return Source(path, calls, names & imported | attributes, texts)


def emitted_codes(path: Path, calls: list[ast.Call]) -> Iterator[tuple[str, ast.expr]]:
    """Yield where a code is, and the expression for it."""
    for node in calls:
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        in_doctor = "doctor" in path.parts
        if name == "note" and not in_doctor and getattr(node.func, "attr", "") == "note":  # ObjectEvents.note
            yield f"{path}:{node.lineno}", node.args[1]
            continue
        if name in IN_DOCTOR_ONLY and (not in_doctor or not isinstance(node.func, ast.Name)):
            continue
        position, keyword = CARRIERS[name]
        by_keyword = [argument.value for argument in node.keywords if argument.arg == keyword]
        by_position = node.args[position : position + 1] if position is not None else []
        for argument in (*by_keyword, *by_position):
            yield f"{path}:{node.lineno}", argument


def test_no_code_is_written_where_it_is_emitted():
    """A code that is not a name, or an attribute that had one before, could be missing in the list."""
    sites = [site for source in modules() for site in emitted_codes(source.path, source.calls)]

    assert [place for place, code in sites if isinstance(code, ast.Constant | ast.JoinedStr)] == []
    assert len(sites) > 60


def test_every_finding_of_doctor_has_a_code():
    for source in modules():
        if "doctor" in source.path.parts:
            calls = [
                call for call in source.calls if isinstance(call.func, ast.Name) and call.func.id in IN_DOCTOR_ONLY
            ]
            assert len(calls) == len(list(emitted_codes(source.path, calls))), source.path


def test_every_listed_code_is_emitted():
    assert set(NAMES) - set[str]().union(*(source.names for source in modules())) == set()
    assert set(NAMES.values()) == set(REASON_CODES)


def test_codes_are_spelled_in_the_list_only():
    spelled = {code for code in REASON_CODES if len(re.findall("[A-Z]+[a-z]+", code)) > 1}

    assert {str(source.path): source.texts & spelled for source in modules() if source.texts & spelled} == {}


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
