"""How long to wait before something is tried again: by what is seen alone, as the kubelet does by what it remembers."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.agent.pods import backoff
from alignup.agent.pods.pod_state import Backoff
from tests.agent.pods.lives import EXITED, NOW, instance


@pytest.mark.parametrize(
    ("failures", "seconds"),
    [(0, 0), (1, 10), (2, 20), (3, 40), (4, 80), (5, 160), (6, 300), (7, 300), (10_000, 300)],
)
def test_the_wait_doubles_up_to_five_minutes(failures, seconds):
    assert backoff.delay(failures) == seconds


@pytest.mark.parametrize(
    ("reason", "waits"),
    [
        pytest.param("ErrImagePull", [10, 20, 40, 80, 160, 300, 300], id="longer and longer for an image"),
        pytest.param("CreateContainerError", [10, 10, 10], id="the same for what fails on this host"),
    ],
)
def test_rests_after_failures_in_a_row(reason, waits):
    rest, rests = None, []
    for _ in waits:
        now = NOW if rest is None else rest.until
        rest = Backoff.after_failure(rest, reason=reason, message="no", now=now)
        rests.append(rest.until - now)

    assert rests == waits
    assert rest is not None
    assert rest.failures == len(waits)


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
def test_a_row_of_failures_ends(before, failures):
    assert Backoff.after_failure(before, reason="ErrImagePull", message="", now=NOW).failures == failures


#: How long each instance runs, and how long its start takes; a start that takes less than 10 s deceives nobody.
runs = st.lists(st.tuples(st.sampled_from([0.5, 9.0, 11.0, 590.0, 601.0]), st.floats(0, 9)), min_size=1, max_size=12)


@given(runs)
def test_the_waits_are_the_kubelets(runs):
    """It remembers one wait a container, doubles it with each start, and forgets it after 10 minutes of running."""
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
        found.append(backoff.restart_at(ended, before) - ended.finished)
        started = ended.finished + expected[-1]
        now, before = started + (took if seconds < 600 else 0), ended

    assert found == pytest.approx(expected)


@given(st.integers(1, 20), st.floats(0, 10_000), st.floats(0, 600))
def test_slow_starts_make_the_wait_longer_but_never_than_all_attempts_would(attempt, gap, seconds):
    before = instance("app", EXITED, 1, attempt=attempt - 1, ran=(NOW - 5, NOW))
    ended = instance("app", EXITED, 1, attempt=attempt, ran=(NOW + gap, NOW + gap + seconds))

    crashes = backoff.crash_count(ended, before)

    assert min(1, attempt) <= crashes <= attempt
    assert backoff.delay(crashes) <= max(10, 2 * gap)


def test_a_slow_start_after_a_long_run_is_no_wait():
    before = instance("app", EXITED, 1, attempt=7, ran=(NOW - 1000, NOW))
    ended = instance("app", EXITED, 1, attempt=8, ran=(NOW + 60, NOW + 61))

    assert backoff.crash_count(ended, before) == 1


def test_where_the_time_before_is_forgotten_all_attempts_count():
    assert backoff.crash_count(instance("app", EXITED, attempt=3, ran=(NOW - 9, NOW)), None) == 3


def test_one_whose_end_the_runtime_does_not_tell_is_not_started_in_haste():
    ended = replace(instance("app", EXITED, attempt=2, ran=(NOW, NOW)), finished=0.0, started=0.0)

    assert backoff.restart_at(ended, None) == NOW + 20
