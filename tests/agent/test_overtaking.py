"""Pods at their overtake limit: others pass only if they take nothing that these could use, and no pod starves."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.agent.pending_admission import PendingAdmission
from alignup.agent.state import MAX_BLOCKING, MAX_TRIES, AdmissionStatus, AgentState
from alignup.agent.transaction import Transaction
from alignup.align.reason_codes import WAITS_ITS_TURN
from alignup.align.settings import Policy
from alignup.align.workload import Pod, Resources
from tests.agent.states import clock, empty_state
from tests.agent.test_state import admits, after, not_none, releases, submit, view
from tests.align.hosts import pod
from tests.effort import examples

#: two NUMA nodes of 16 CPUs with a NIC each
LARGE: dict[str, Any] = {"wait_enabled": True, "shape": "pack:2 numa:1 core:16 pu:1", "capacity": 100}


def waiting_for_a_nic(*, max_overtakes: int) -> AgentState:
    """Both NICs are held, and "waits" waits for one beside 28 free CPUs; it has been overtaken once."""
    return after(
        empty_state(**LARGE, max_overtakes=max_overtakes),
        *(admits(uid, cpu="1", nic="1") for uid in ("holds-0", "holds-1")),
        admits("waits", cpu="4", nic="1"),
        admits("overtakes", cpu="1"),
    )


def test_pods_that_leave_enough_for_a_pod_at_its_overtake_limit_are_admitted():
    now = waiting_for_a_nic(max_overtakes=1)
    for number in range(40):
        now = after(now, admits(f"small-{number}", cpu="1"))

    admitted = [uid for uid in now.admitted if uid.startswith("small")]
    assert len(admitted) == 9  # the four CPUs of node 0 that "waits" could use are left
    assert now.host.ledger.cpus.free[0] == 4
    assert not_none(view(now, "small-39").decision.rejection).reason == WAITS_ITS_TURN
    for holder in ("holds-0", "holds-1"):
        assert view(after(now, releases(holder)), "waits").status is AdmissionStatus.ADMITTED


def test_a_waiting_pod_passes_one_at_its_overtake_limit_when_enough_is_released():
    now = after(
        empty_state(**LARGE, max_overtakes=0),
        *(admits(uid, cpu="1", nic="1") for uid in ("holds-0", "holds-1")),
        *(admits(uid, cpu=cpu) for uid, cpu in (("big-0", "8"), ("big-1", "10"))),
        admits("waits", cpu="4", nic="1"),
        admits("small", cpu="3"),
    )
    assert view(now, "small").status is AdmissionStatus.WAITING

    now = after(now, releases("big-0"))

    assert view(now, "small").status is AdmissionStatus.ADMITTED
    assert view(now, "waits").status is AdmissionStatus.WAITING


def test_behind_too_many_pods_at_their_limit_every_pod_waits():
    now = waiting_for_a_nic(max_overtakes=0)
    few = after(now, *(admits(f"more-{number}", cpu="1", nic="1") for number in range(MAX_BLOCKING - 1)))
    many = after(few, admits("one-more", cpu="1", nic="1"))
    besteffort = replace(pod("small"), containers=(replace(pod().containers[0], resources=Resources()),))

    assert submit(Transaction(few, clock()), besteffort).decision.admitted
    assert not submit(Transaction(many, clock()), besteffort).decision.admitted


def test_only_a_few_different_requests_are_retried_behind_a_pod_at_its_limit():
    others = [admits(f"other-{number}", cpu="11", memory=f"{number + 1}Gi") for number in range(MAX_TRIES + 1)]
    now = after(waiting_for_a_nic(max_overtakes=0), *others)
    decided: list[str] = []

    class Recording(Transaction):
        def decide(self, pod: Pod, **how: Any) -> PendingAdmission:
            decided.append(pod.uid)
            return super().decide(pod, **how)

    Recording(now, clock()).retry_waiting()

    assert decided == ["waits", *(f"other-{number}" for number in range(MAX_TRIES - 1))]


@settings(max_examples=examples(30))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["admit", "admit", "admit", "release"]),
            st.sampled_from("1234"),
            st.sampled_from([{}, {}, {"nic": "1"}, {"gpu": "1"}]),
            st.integers(0, 7),
        ),
        max_size=25,
    ),
    st.sampled_from([0, 1, 2]),
    st.sampled_from(list(Policy)),
)
def test_no_pod_starves(jobs, patience, policy):
    """A pod at its limit is admitted when those that were ahead of it at that time end, whatever came later."""
    now = empty_state(**LARGE | {"shape": "pack:2 numa:1 core:4 pu:1"}, max_overtakes=patience, policy=policy)
    ahead: dict[str, set[str]] = {}  # uid of a pod at its limit → the pods that were admitted or waiting before it then
    for number, (action, cpu, devices, choice) in enumerate(jobs):
        known = [*now.admitted, *now.waiting.uids()]
        if action == "admit" or not known:
            now = after(now, admits(str(number), cpu=cpu, **devices))
        else:
            now = after(now, releases(known[choice % len(known)]))
        waiting = now.waiting.uids()
        for place, uid in enumerate(waiting):
            if now.waiting.is_blocking(uid):
                ahead.setdefault(uid, {*now.admitted, *waiting[:place]})

    for uid in [uid for uid in now.waiting.uids() if uid in ahead]:
        ended = now
        for other in ahead[uid]:
            ended = after(ended, releases(other))
        assert uid in ended.admitted, f"{uid} waits although {ahead[uid]} ended"
