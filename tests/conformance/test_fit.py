"""The node's fit check: numbers compared, verdicts, reasons and messages."""

import re
from typing import Any

from alignup.align import fit
from alignup.align.fit import FitFailure, NodeAllocatable, UsedResources
from alignup.align.quantity import Quantity
from alignup.align.release import ClaimRule
from alignup.align.workload import Pod, demand
from alignup.align.workload.demand import FitRequest
from alignup.align.workload.names import is_scalar
from alignup.kubernetes.manifests.pod_decoder import read_pod
from tests.conformance.harness import Case, run

#: What the kubelet always compares in this order; it takes all others at random.
ORDERED = ("pods", "cpu", "memory", "ephemeral-storage")
NEED = re.compile(r"\(res: \S+, q: -?\d+\), ")


def test_pods_fit_where_the_kubelet_says(request):
    run(request, "fit", check)


def check(case: Case) -> str | None:
    pod = pod_of(case["pod"])
    others = [pod_of(document) for document in case["running"]]
    allocatable = allocatable_of(case["node"]["allocatable"])
    used = UsedResources()
    for other in others:
        used = used.plus(demand.fit_used(other))

    failure = fit.check_fit(pod, usage=used, allocatable=allocatable, others=others)

    assert written(demand.fit_request(pod)) == case["pod_request"]
    assert written(allocatable) == case["capacity"]
    assert nonzero(written(used)) == nonzero(case["used"] | {"pods": len(others)})
    if any("preempted" in result for result in case["results"]):
        check_eviction(case["results"], pod, others, failure)
        return "the kubelet preempts others for a critical pod, we reject it"
    check_verdict(case["results"], failure)
    return None


def check_verdict(results: list[dict[str, Any]], failure: FitFailure | None) -> None:
    """Every outcome seen is ours, or where chance decides which shortfall is named, names one that we found."""
    seen = {(result["admit"], result["reason"], in_any_order(result["message"])) for result in results}
    if failure is None:
        assert seen == {(True, "", "")}
        return
    ours = (False, failure.reason, in_any_order(failure.message))
    first = failure.insufficient[0] if failure.insufficient else None
    if first and first.reason == failure.reason and first.resource not in ORDERED:
        possible = {(False, insufficient.reason, insufficient.message) for insufficient in failure.insufficient}
        assert seen | {ours} <= possible
    else:
        assert seen == {ours}


def check_eviction(results: list[dict[str, Any]], pod: Pod, others: list[Pod], failure: FitFailure | None) -> None:
    """We reject for want of a resource; those the kubelet evicts are such as may be, and free enough of everything."""
    assert failure is not None
    assert (failure.reason, failure.message) == (failure.insufficient[0].reason, failure.insufficient[0].message)
    assert fit.is_critical(pod)
    named = {other.name: other for other in others}
    for result in results:
        assert result["admit"]
        evicted = [named[name] for name in result["preempted"]]
        assert all(fit.may_preempt(pod, other) for other in evicted)
        assert not fit.still_missing(failure.insufficient, evicted)


def in_any_order(message: str) -> tuple[str, ...] | str:
    """A message that lists what is missing, whatever the order; any other as it is."""
    return (NEED.sub("", message), *sorted(NEED.findall(message))) if NEED.search(message) else message


def allocatable_of(listed: dict[str, str]) -> NodeAllocatable:
    """The allocatable list of a Node's status; resources unknown to the check are omitted."""
    amounts = {name: Quantity.parse(text) for name, text in listed.items()}
    values = {name: amount.value() for name, amount in amounts.items()}
    return NodeAllocatable(
        milli_cpu=amounts.get("cpu", Quantity.ZERO).milli(),
        memory=values.get("memory", 0),
        ephemeral_storage=values.get("ephemeral-storage", 0),
        pods=values.get("pods", 0),
        scalars={name: value for name, value in values.items() if is_scalar(name)},
        claim_rule=ClaimRule.CLAIMED_IGNORED,
    )


def pod_of(document: Case) -> Pod:
    return read_pod({"apiVersion": "v1", "kind": "Pod", **document})


def written(amounts: FitRequest | NodeAllocatable | UsedResources) -> dict[str, Any]:
    fields = amounts._asdict()
    fields.pop("claim_rule", None)
    return fields | {"scalar": fields.pop("scalars")}


def nonzero(fields: dict[str, Any]) -> dict[str, Any]:
    return fields | {"scalar": {name: amount for name, amount in fields["scalar"].items() if amount}}
