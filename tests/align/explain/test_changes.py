"""Proposals as sentences and as JSON."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.align.cpus.options import CpuSettings
from alignup.align.decision import Decision
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
from alignup.align.quantity import Quantity
from alignup.align.settings import Policy
from tests.align.hosts import GPU, admit, after, arrivals, hosts, make_host, make_pod
from tests.effort import examples

GIB = 1 << 30


def busy() -> Host:
    host = make_host()
    for uid in ("web", "db"):
        assert host.admit(make_pod(uid, cpu="1")).admitted
    return host


def decided() -> Decision:
    return busy().decide(make_pod("late"))


CHANGES = {
    "fewer CPUs": (
        RequestChange("app", "cpu", 8, 6, Unit.CPUS),
        "request 6 CPUs instead of 8 for container app",
        {"kind": "request", "container": "app", "resource": "cpu", "was": "8", "now": "6"},
    ),
    "fewer shared CPUs": (
        RequestChange("app", "cpu", 2500, 1500, Unit.MILLI_CPUS),
        "request 1500m CPU instead of 2500m for container app",
        {"kind": "request", "container": "app", "resource": "cpu", "was": "2500m", "now": "1500m"},
    ),
    "less memory for the pod": (
        RequestChange(None, "memory", 4 * GIB, 3 * GIB, Unit.BYTES),
        "request 3Gi memory instead of 4Gi for the pod",
        {"kind": "request", "container": None, "resource": "memory", "was": "4Gi", "now": "3Gi"},
    ),
    "no device": (
        RequestChange("app", GPU, 2, 0, Unit.COUNT),
        f"remove {GPU} from container app",
        {"kind": "request", "container": "app", "resource": GPU, "was": "2", "now": "0"},
    ),
    "another policy": (
        SettingChange("topologyManagerPolicy", "restricted", "best-effort"),
        "set topologyManagerPolicy to best-effort instead of restricted",
        {"kind": "setting", "field": "topologyManagerPolicy", "was": "restricted", "now": "best-effort"},
    ),
    "one eviction": (
        Eviction(("web",), (("db",),)),
        "evict default/web (or another pod that holds the same)",
        {"kind": "leaving", "pods": [{"uid": "web", "name": "default/web"}], "instead": [["db"]]},
    ),
    "one eviction of many": (
        Eviction(("web",), (("db", "cache"),)),
        "evict default/web (or one of 2 others that hold the same)",
        {"kind": "leaving", "pods": [{"uid": "web", "name": "default/web"}], "instead": [["db", "cache"]]},
    ),
    "two evictions of more": (
        Eviction(("web", "db"), (("cache",), ())),
        "evict default/web and default/db (or other pods that hold the same)",
        {
            "kind": "leaving",
            "pods": [{"uid": "web", "name": "default/web"}, {"uid": "db", "name": "default/db"}],
            "instead": [["cache"], []],
        },
    ),
    "two evictions": (
        Eviction(("web", "gone"), ((), ())),
        "evict default/web and gone",
        {
            "kind": "leaving",
            "pods": [{"uid": "web", "name": "default/web"}, {"uid": "gone", "name": "gone"}],
            "instead": [[], []],
        },
    ),
    "fewer reserved CPUs": (
        ReservationChange("cpu", 2000, 1000),
        "reserve 1 CPU instead of 2 for system daemons",
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
            "move reservedMemory (memory): 0 instead of 1Gi on NUMA node 0 and 1Gi instead of 0 on NUMA node 1 "
            "(drain the node first: memory_manager_state records the old reservation)"
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
            "reserve 1Gi instead of 2Gi of memory in total, in reservedMemory 1Gi instead of 2Gi on NUMA node 0 "
            "(drain the node first: memory_manager_state records the old reservation)"
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
def test_every_change_has_a_sentence_and_a_document(change, sentence, document):
    proposal = Proposal((change,), decided())

    assert proposal.describe(busy().ledger) == sentence
    assert proposal.to_document(busy().ledger)["changes"] == [document]


def test_several_changes_make_one_sentence():
    both = (
        SettingChange("topologyManagerPolicy", "restricted", "none"),
        SettingChange("topologyManagerScope", "pod", "container"),
    )

    assert Proposal(both, decided()).describe(busy().ledger) == (
        "set topologyManagerPolicy to none instead of restricted, "
        "and set topologyManagerScope to container instead of pod"
    )


def test_the_result_lists_each_container():
    assert Proposal((), decided()).describe_result() == "CPUs 4-5 · 1Gi memory on NUMA node 1"


def test_a_result_across_numa_nodes_says_so():
    decision = make_host(Policy.BEST_EFFORT, memory=False).decide(make_pod("wide", cpu="5"))
    both = Proposal((), replace(decision, placements=2 * decision.placements))

    assert Proposal((), decision).describe_result() == "CPUs 1,4-7 · spans NUMA nodes 0-1"
    assert both.describe_result().endswith("; app spans NUMA nodes 0-1")
    assert "spans" not in Proposal((), decision.without_ledgers()).describe_result()


def test_a_reservation_of_the_cpu_manager_alone_shrinks():
    """The whole host may reserve no CPUs."""
    cpus = CpuSettings(policy="static", reservation=Quantity.parse("2"))
    host = make_host(memory=False, cpus=cpus, reservation={})

    changed, _ = ReservationChange("cpu", 2000, 1000).apply(host, make_pod())

    assert str(changed.settings.cpus.reservation) == "1"
    assert changed.settings.reservation == {}


@settings(deadline=None, max_examples=examples(20))
@given(st.data(), hosts())
def test_every_proposal_has_a_sentence_and_a_document(data, host):
    for number in range(3):
        admit(host, data.draw(arrivals(f"uid-{number}")))
    late = data.draw(arrivals("late"))

    remedies = find_remedies(host, late, should_stop=after(200))

    for proposal in remedies.proposals:
        assert proposal.describe(host.ledger)
        assert proposal.describe_result()
        assert json.loads(json.dumps(proposal.to_document(host.ledger)))["sentence"]
