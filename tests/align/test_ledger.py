"""The ledger of a host: adding and removing pods makes a new one."""

from dataclasses import replace

import pytest

from alignup.align.fit import UsedResources
from alignup.align.ledger import AdmittedPod, Ledger
from alignup.align.workload.demand import fit_used
from tests.align.hosts import GIB, GPU, host, pod


def resident(uid: str, *, gpu: str = "0") -> AdmittedPod:
    wanted = pod(uid, gpu=gpu)
    return AdmittedPod(wanted, {}, fit_used(wanted))


def idle() -> Ledger:
    return replace(host().initial_ledger(), others={"count": 0})


def test_a_pod_is_added():
    empty = idle()

    ledger = empty.with_pod(resident("a", gpu="1"), {**empty.by_provider(), "count": 1})

    assert (ledger.cpus, ledger.memory, ledger.devices) == (empty.cpus, empty.memory, empty.devices)
    assert ledger.others == {"count": 1}
    assert list(ledger.pods) == ["a"]
    assert ledger.used == UsedResources(milli_cpu=2000, memory=GIB, pods=1, scalars={GPU: 1})
    assert (empty.others, empty.pods, empty.used) == ({"count": 0}, {}, UsedResources())


def test_pods_are_in_the_order_of_admission():
    ledger = idle()
    for uid in ("c", "a", "b"):
        ledger = ledger.with_pod(resident(uid))

    assert list(ledger.pods) == ["c", "a", "b"]
    assert list(ledger.without_pod("a", ledger.by_provider()).pods) == ["c", "b"]


def test_a_removed_pod_takes_its_usage_along():
    empty = idle()
    ledgers = [{**empty.by_provider(), "count": count} for count in range(3)]
    both = empty.with_pod(resident("a", gpu="1"), ledgers[1]).with_pod(resident("b"), ledgers[2])

    left = both.without_pod("a", ledgers[1])

    assert left.used == UsedResources(milli_cpu=2000, memory=GIB, pods=1)
    assert left.without_pod("b", ledgers[0]) == empty
    assert list(both.pods) == ["a", "b"]


def test_an_unknown_pod_cannot_be_removed():
    with pytest.raises(KeyError):
        idle().without_pod("unknown", idle().by_provider())
