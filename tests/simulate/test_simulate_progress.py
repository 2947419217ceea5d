from alignup.simulate.node_simulation import MIN_INTERVAL, ProgressReporter


class Clock:
    """Advances by *step* on every call."""

    def __init__(self, step: float) -> None:
        self.step, self.time = step, 0.0

    def __call__(self) -> float:
        self.time += self.step
        return self.time


def calls_of(step: float, counts: list[int], total: int) -> list[tuple[int, int]]:
    calls: list[tuple[int, int]] = []
    reporter = ProgressReporter(lambda done, all_: calls.append((done, all_)), total, now=Clock(step))
    for count in counts:
        reporter.report(count)
    return calls


def test_slow_work_is_reported_step_by_step():
    assert calls_of(1.0, [1, 2, 3], 3) == [(1, 3), (2, 3), (3, 3)]


def test_fast_work_is_reported_at_most_once_per_interval():
    calls = calls_of(MIN_INTERVAL / 10, list(range(1, 1001)), 1000)

    assert calls[-1] == (1000, 1000)
    assert len(calls) <= 1000 / 10 + 2


def test_the_end_is_reported_exactly_once():
    assert calls_of(0.0, [1, 2, 2], 2) == [(2, 2)]


def test_progress_is_optional():
    ProgressReporter(None, 1).report(1)
