"""Proposals in sentences, and for machines."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.align.decision import Decision
from alignup.align.explain.advice import describe_proposal, describe_result, to_document
from alignup.align.explain.changes import (
    Eviction,
    NodeReservationChange,
    Proposal,
    RequestChange,
    ReservationChange,
    SettingChange,
    Unit,
)
from alignup.align.explain.remedies import find_remedies
from alignup.align.host import Host
from tests.align.hosts import GPU, admit, arrivals, host, hosts, pod

GIB = 1 << 30


def busy() -> Host:
    one = host()
    for uid in ("web", "db"):
        assert one.admit(pod(uid, cpu="1")).admitted
    return one


def decided() -> Decision:
    return busy().decide(pod("late"))


CHANGES = {
    "fewer CPUs": (
        RequestChange("app", "cpu", 8, 6, Unit.CPUS),
        "let container app ask for 6 CPUs instead of 8",
        {"kind": "request", "container": "app", "resource": "cpu", "was": "8", "now": "6"},
    ),
    "less of the shared CPUs": (
        RequestChange("app", "cpu", 2500, 1500, Unit.MILLI_CPUS),
        "let container app ask for 1500m CPU instead of 2500m",
        {"kind": "request", "container": "app", "resource": "cpu", "was": "2500m", "now": "1500m"},
    ),
    "less memory for the pod as a whole": (
        RequestChange(None, "memory", 4 * GIB, 3 * GIB, Unit.BYTES),
        "let the pod ask for 3Gi memory instead of 4Gi",
        {"kind": "request", "container": None, "resource": "memory", "was": "4Gi", "now": "3Gi"},
    ),
    "no device": (
        RequestChange("app", GPU, 2, 0, Unit.PIECES),
        f"let container app do without {GPU}",
        {"kind": "request", "container": "app", "resource": GPU, "was": "2", "now": "0"},
    ),
    "another policy": (
        SettingChange("topologyManagerPolicy", "restricted", "best-effort"),
        "set topologyManagerPolicy to best-effort instead of restricted",
        {"kind": "setting", "field": "topologyManagerPolicy", "was": "restricted", "now": "best-effort"},
    ),
    "a pod that leaves": (
        Eviction(("web",), (("db",),)),
        "stop default/web (another one would do as well)",
        {"kind": "leaving", "pods": [{"uid": "web", "name": "default/web"}], "instead": [["db"]]},
    ),
    "pods that leave": (
        Eviction(("web", "gone"), ((), ())),
        "stop default/web and gone",
        {
            "kind": "leaving",
            "pods": [{"uid": "web", "name": "default/web"}, {"uid": "gone", "name": "gone"}],
            "instead": [[], []],
        },
    ),
    "fewer reserved CPUs": (
        ReservationChange("cpu", 2000, 1000),
        "reserve 1 CPU instead of 2 for the system and Kubernetes",
        {"kind": "reservation", "resource": "cpu", "was": "2", "now": "1"},
    ),
    "a shorter list of reserved CPUs": (
        ReservationChange("cpu", 2000, 1000, listed=(0b11, 0b1)),
        "set reservedSystemCPUs to 0 instead of 0-1",
        {
            "kind": "reservation",
            "resource": "cpu",
            "was": "2",
            "now": "1",
            "reservedSystemCPUs": {"was": "0-1", "now": "0"},
        },
    ),
    "memory reserved elsewhere": (
        ReservationChange(
            "memory", GIB, GIB, shares=(NodeReservationChange(0, GIB, 0), NodeReservationChange(1, 0, GIB))
        ),
        (
            "move reservedMemory (memory): 0 instead of 1Gi on node 0 and 1Gi instead of 0 on node 1 "
            "(drain the node first: its memory_manager_state is of the old one)"
        ),
        {
            "kind": "reservation",
            "resource": "memory",
            "was": "1Gi",
            "now": "1Gi",
            "reservedMemory": [{"node": 0, "was": "1Gi", "now": "0"}, {"node": 1, "was": "0", "now": "1Gi"}],
        },
    ),
    "less memory reserved": (
        ReservationChange("memory", 2 * GIB, GIB, shares=(NodeReservationChange(0, 2 * GIB, GIB),)),
        (
            "reserve less memory, 1Gi instead of 2Gi in all, in reservedMemory 1Gi instead of 2Gi on node 0 "
            "(drain the node first: its memory_manager_state is of the old one)"
        ),
        {
            "kind": "reservation",
            "resource": "memory",
            "was": "2Gi",
            "now": "1Gi",
            "reservedMemory": [{"node": 0, "was": "2Gi", "now": "1Gi"}],
        },
    ),
}


@pytest.mark.parametrize(("change", "sentence", "document"), CHANGES.values(), ids=CHANGES)
def test_every_change_is_told_to_people_and_to_machines(change, sentence, document):
    proposal = Proposal((change,), decided())

    assert describe_proposal(proposal, busy().ledger) == sentence
    assert to_document(proposal, busy().ledger)["changes"] == [document]


def test_several_changes_belong_together():
    both = (
        SettingChange("topologyManagerPolicy", "restricted", "none"),
        SettingChange("topologyManagerScope", "pod", "container"),
    )

    assert describe_proposal(Proposal(both, decided()), busy().ledger) == (
        "set topologyManagerPolicy to none instead of restricted, "
        "and set topologyManagerScope to container instead of pod"
    )


def test_the_result_says_what_each_container_would_be_given():
    assert describe_result(Proposal((), decided())) == "CPUs 4-5 · 1Gi memory on node 1"


@settings(deadline=None, max_examples=20)
@given(st.data(), hosts())
def test_whatever_is_proposed_can_be_told(data, one):
    for number in range(3):
        admit(one, data.draw(arrivals(f"uid-{number}")))
    late = data.draw(arrivals("late"))
    tries = iter(range(200))

    found = find_remedies(one, late, enough=lambda: next(tries, None) is None)

    for proposal in found.proposals:
        assert describe_proposal(proposal, one.ledger)
        assert describe_result(proposal)
        assert json.loads(json.dumps(to_document(proposal, one.ledger)))["sentence"]
