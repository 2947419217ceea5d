"""How far a long piece of work has come."""

from alignup.fleet.progress import MIN_INTERVAL, ProgressReporter


class Clock:
    """Moves on by so much every time it is looked at."""

    def __init__(self, step: float) -> None:
        self.step, self.time = step, 0.0

    def __call__(self) -> float:
        self.time += self.step
        return self.time


def told(step: float, counts: list[int], total: int) -> list[tuple[int, int]]:
    calls: list[tuple[int, int]] = []
    ticker = ProgressReporter(lambda done, all_: calls.append((done, all_)), total, now=Clock(step))
    for count in counts:
        ticker.done(count)
    return calls


def test_slow_work_is_told_of_piece_by_piece():
    assert told(1.0, [1, 2, 3], 3) == [(1, 3), (2, 3), (3, 3)]


def test_fast_work_is_told_of_twenty_times_a_second():
    calls = told(MIN_INTERVAL / 10, list(range(1, 1001)), 1000)

    assert calls[-1] == (1000, 1000)
    assert len(calls) <= 1000 / 10 + 2


def test_the_end_is_always_told_and_only_once():
    assert told(0.0, [1, 2, 2], 2) == [(2, 2)]


def test_nobody_has_to_listen():
    ProgressReporter(None, 1).done(1)
