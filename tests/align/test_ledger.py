"""The ledger of a host: pods come and go, and the old ledger stays as it was."""

import pytest

from alignup.align.fit import UsedResources
from alignup.align.ledger import AdmittedPod, Ledger
from alignup.align.workload.demand import fit_used
from tests.align.hosts import GIB, GPU, pod


def resident(uid: str, *, gpu: str = "0") -> AdmittedPod:
    wanted = pod(uid, gpu=gpu)
    return AdmittedPod(wanted, {}, fit_used(wanted))


def test_a_pod_comes():
    empty = Ledger({"cpu": 0})

    ledger = empty.with_pod(resident("a", gpu="1"), {"cpu": 1})

    assert ledger.books == {"cpu": 1}
    assert list(ledger.pods) == ["a"]
    assert ledger.used == UsedResources(milli_cpu=2000, memory=GIB, pods=1, scalars={GPU: 1})
    assert (empty.books, empty.pods, empty.used) == ({"cpu": 0}, {}, UsedResources())


def test_pods_stand_in_the_order_they_came():
    ledger = Ledger({})
    for uid in ("c", "a", "b"):
        ledger = ledger.with_pod(resident(uid), {})

    assert list(ledger.pods) == ["c", "a", "b"]
    assert list(ledger.without_pod("a", {}).pods) == ["c", "b"]


def test_a_pod_goes_with_all_it_used():
    empty = Ledger({"cpu": 0})
    both = empty.with_pod(resident("a", gpu="1"), {"cpu": 1}).with_pod(resident("b"), {"cpu": 2})

    left = both.without_pod("a", {"cpu": 1})

    assert left.used == UsedResources(milli_cpu=2000, memory=GIB, pods=1)
    assert left.without_pod("b", {"cpu": 0}) == empty
    assert list(both.pods) == ["a", "b"]


def test_who_is_not_there_cannot_go():
    with pytest.raises(KeyError):
        Ledger({}).without_pod("nobody", {})
