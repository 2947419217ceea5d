"""Back-off delays, derived from container statuses alone, equal those that the kubelet keeps in memory."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.agent.pods.pod_state import DEFAULT_INTERVALS, Backoff, finished_at
from alignup.run.cri.types import CriContainer
from tests.agent.pods.statuses import EXITED, NOW, instance


def restart_at(exited: CriContainer, previous: CriContainer | None) -> float:
    """The earliest time at which an exited container may restart."""
    return finished_at(exited) + DEFAULT_INTERVALS.delay(DEFAULT_INTERVALS.crash_count(exited, previous))


@pytest.mark.parametrize(
    ("failures", "seconds"),
    [(0, 0), (1, 10), (2, 20), (3, 40), (4, 80), (5, 160), (6, 300), (7, 300), (10_000, 300)],
)
def test_the_delay_doubles_up_to_five_minutes(failures, seconds):
    assert DEFAULT_INTERVALS.delay(failures) == seconds


@pytest.mark.parametrize(
    ("reason", "waits"),
    [
        pytest.param("ErrImagePull", [10, 20, 40, 80, 160, 300, 300], id="image pulls back off exponentially"),
        pytest.param("CreateContainerError", [10, 10, 10], id="other failures have a constant delay"),
    ],
)
def test_delays_after_repeated_failures(reason, waits):
    failure, rests = None, []
    for _ in waits:
        now = NOW if failure is None else failure.until
        failure = DEFAULT_INTERVALS.back_off(failure, reason=reason, message="no", now=now)
        rests.append(failure.until - now)

    assert rests == waits
    assert failure is not None
    assert failure.failures == len(waits)


@pytest.mark.parametrize(
    ("before", "failures"),
    [
        pytest.param(Backoff(until=NOW - 599, reason="ErrImagePull", message="", failures=3), 4, id="soon after"),
        pytest.param(Backoff(until=NOW - 600, reason="ErrImagePull", message="", failures=3), 1, id="long after"),
        pytest.param(
            Backoff(until=NOW, reason="CreateContainerError", message="", failures=3), 1, id="for another reason"
        ),
    ],
)
def test_when_the_failure_count_restarts(before, failures):
    assert DEFAULT_INTERVALS.back_off(before, reason="ErrImagePull", message="", now=NOW).failures == failures


#: How long each instance runs and how long its start takes; only a start of 10 s or more looks like a back-off.
runs = st.lists(st.tuples(st.sampled_from([0.5, 9.0, 11.0, 590.0, 601.0]), st.floats(0, 9)), min_size=1, max_size=12)


@given(runs)
def test_delays_equal_the_kubelets(runs):
    """The kubelet keeps one delay per container, doubles it at each start, and resets it after a run of 10 minutes."""
    now, remembered, started = NOW, 0.0, 0.0
    before, expected, found = None, [], []
    for attempt, (seconds, took) in enumerate(runs):
        ended = instance("app", EXITED, 1, attempt=attempt, ran=(now, now + seconds))
        if not remembered or ended.finished - started > 600:
            expected.append(0.0)
            remembered = 10.0
        else:
            expected.append(remembered)
            remembered = min(remembered * 2, 300.0)
        found.append(restart_at(ended, before) - ended.finished)
        started = ended.finished + expected[-1]
        now, before = started + (took if seconds < 600 else 0), ended

    assert found == pytest.approx(expected)


@given(st.integers(1, 20), st.floats(0, 10_000), st.floats(0, 600))
def test_slow_starts_lengthen_the_delay_up_to_that_of_all_attempts(attempt, gap, seconds):
    before = instance("app", EXITED, 1, attempt=attempt - 1, ran=(NOW - 5, NOW))
    ended = instance("app", EXITED, 1, attempt=attempt, ran=(NOW + gap, NOW + gap + seconds))

    crashes = DEFAULT_INTERVALS.crash_count(ended, before)

    assert min(1, attempt) <= crashes <= attempt
    assert DEFAULT_INTERVALS.delay(crashes) <= max(10, 2 * gap)


def test_a_slow_start_after_a_long_run_is_not_a_delay():
    before = instance("app", EXITED, 1, attempt=7, ran=(NOW - 1000, NOW))
    ended = instance("app", EXITED, 1, attempt=8, ran=(NOW + 60, NOW + 61))

    assert DEFAULT_INTERVALS.crash_count(ended, before) == 1


def test_without_the_previous_instance_all_attempts_count():
    assert DEFAULT_INTERVALS.crash_count(instance("app", EXITED, attempt=3, ran=(NOW - 9, NOW)), None) == 3


def test_a_container_without_a_finish_time_backs_off():
    ended = replace(instance("app", EXITED, attempt=2, ran=(NOW, NOW)), finished=0.0, started=0.0)

    assert restart_at(ended, None) == NOW + 20
