"""Where CPUs could come from: the kubelet's lists, for numbers, containers and whole pods."""

from alignup.align import bits
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.cpus.options import CpuPolicy
from alignup.align.cpus.provider import CpuNodes, CpuProvider
from tests.align.cpus.allocation import cpu_hints
from tests.conformance.cpu_cases import held_of, listed, options_of, seen_pod
from tests.conformance.harness import Case, run
from tests.vector_types import named, view_of


def test_hints_are_those_of_the_kubelet_in_its_order(request):
    run(request, "cpu_hints", check)


def check(case: Case) -> None:
    answer = raw(case) if case["level"] == "raw" else of_pod(case)

    assert listed(answer) == case["hints"], listed(answer)


def raw(case: Case):
    nodes = CpuNodes(view_of(case["topology"]), by_socket="align-by-socket" in case["options"])
    free = nodes.count(bits.parse(case["available"]))
    return nodes.hints(case["request"], free=free, reusable=bits.parse(case["reusable"]))


def of_pod(case: Case):
    view, pod = view_of(case["topology"]), seen_pod(case, case["pod"])
    reserved, reusable = bits.parse(case["reserved"]), bits.parse(case["reusable"])
    provider = CpuProvider(
        view=view,
        policy=CpuPolicy.STATIC,
        options=options_of(case["options"]),
        reserved=reserved,
        pod_level="PodLevelResourceManagers" in case["gates"],
        kubelet_faults=True,
        kubelet_release=case["release"],
    )
    ledger = CpuLedger(
        node_cpus=view.node_cpus,
        reserved=reserved,
        shared=bits.parse(case["default"]),
        held=held_of(case.get("assignments")),
        reusable=(pod.uid, reusable),
    )
    if case["level"] == "pod":
        return cpu_hints(provider, ledger, pod)
    return cpu_hints(provider, ledger, pod, named(pod, case["container"]))
