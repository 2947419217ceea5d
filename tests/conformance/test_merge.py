"""Merging of provider hints under every policy: the kubelet's set, flag and verdict."""

from typing import Any

from alignup.align import bits
from alignup.align.hint import Hint, HintsByResource, provider_inputs
from alignup.align.machine import Distances
from alignup.align.merging.merge import apply_policy
from alignup.align.settings import Policy
from tests.conformance.harness import Case, run


def test_merging_equals_the_kubelets(request):
    run(request, "merge", check)


def check(case: Case) -> str | None:
    rows = {int(node): row for node, row in (case["distances"] or {}).items()} if case["prefer_closest"] else {}

    verdict = judged(case, Distances.of_rows(rows) if rows else None)

    if case.get("panics"):
        assert verdict["mask"] is None or set(verdict["mask"]) <= set(case["numa_nodes"])
        return "the kubelet crashes, we answer"
    if verdict != case["expect"] and any(len(row) <= max(rows) for row in rows.values()):
        # Rows without columns for missing nodes: is the kubelet's answer that of reading columns by node id?
        misread = {a: {b: row[b] if b < len(row) else 0 for b in rows} for a, row in rows.items()}
        assert judged(case, Distances(misread)) == case["expect"]
        return "the kubelet reads a wrong distance, we the right one"
    assert verdict == case["expect"]
    return None


def judged(case: Case, distances: Distances | None) -> dict[str, Any]:
    verdict = apply_policy(
        Policy(case["policy"]),
        [
            merge_input
            for number, provider in enumerate(case["providers"])
            for merge_input in provider_inputs(str(number), answer(provider))
        ],
        nodes=bits.of(case["numa_nodes"]),
        distances=distances,
    )
    mask, preferred = verdict.hint
    return {
        "mask": None if mask is None else list(bits.members(mask)),
        "preferred": preferred,
        "admit": verdict.admitted,
    }


def answer(document: dict[str, Any] | None) -> HintsByResource:
    if document is None:
        return None
    return {resource: None if hints is None else [hint(each) for each in hints] for resource, hints in document.items()}


def hint(document: dict[str, Any]) -> Hint:
    return Hint(None if document["mask"] is None else bits.of(document["mask"]), document["preferred"])
