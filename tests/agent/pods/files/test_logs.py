"""Reading, following and rotating container logs across files."""

import asyncio
import gzip
from collections.abc import Callable
from contextlib import aclosing
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alignup.agent.pods.files import logs
from alignup.align.errors import EnforceError
from alignup.documents.api import LogQuery
from tests.agent.pods.files.mounting import names_in

T = b"2026-01-31T23:59:59.5Z"
ALL = LogQuery()


def records(*lines: object, stream: bytes = b"stdout") -> bytes:
    return b"".join(T + b" " + stream + b" F " + str(line).encode() + b"\n" for line in lines)


def grow(path: Path, *lines: object) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as file:
        file.write(records(*lines))


def text(path: Path, query: LogQuery = ALL, *, block: int = logs.BLOCK_BYTES) -> list[str]:
    """The lines of a log."""

    async def gathered() -> bytes:
        return b"".join([part async for part in await logs.read_log(path, query, block=block)])

    return asyncio.run(gathered()).decode().splitlines()


@pytest.fixture
def log(tmp_path):
    return tmp_path / "app" / "0.log"


@pytest.fixture
def rotated(log):
    """A log that was rotated twice; the older file is compressed."""
    grow(log, 1, 2, 3)
    old = log.with_name("0.log.20260101-000000.gz")
    old.write_bytes(gzip.compress(log.read_bytes()))
    log.unlink()
    grow(log, 4, 5)
    log.rename(log.with_name("0.log.20260102-000000"))
    grow(log, 6, 7)
    grow(log.with_name("0.log.notes"), "not a log")
    grow(log.with_name("0.log.20260101-000000"), "compressed already")
    grow(log.with_name("0.log.20260101-000000.tmp"), "half compressed")
    grow(log.with_name("00.log.20260101-000000"), "of another")
    return log


def test_reading_starts_with_the_oldest_file(rotated):
    assert text(rotated) == list("1234567")


@pytest.mark.parametrize("tail", range(9))
def test_tail_spans_all_files(rotated, tail):
    assert text(rotated, LogQuery(tail=tail)) == list("1234567")[max(0, 7 - tail) :]


def test_timestamps(log):
    grow(log, "x")

    assert text(log, LogQuery(timestamps=True)) == ["2026-01-31T23:59:59.500000000Z x"]


def test_a_missing_log_is_an_error(log):
    with pytest.raises(LookupError, match=r"log .*0\.log does not exist"):
        text(log)
    with pytest.raises(LookupError):
        text(log, LogQuery(follow=True))


def test_rotated_files_are_read_without_the_current_one(rotated):
    rotated.unlink()

    assert text(rotated) == list("12345")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.text("ab", max_size=40), st.booleans()), max_size=40),
    st.integers(0, 12),
    st.integers(1, 600),
    st.booleans(),
)
def test_tail_is_found_from_the_end(tmp_path, printed, tail, block, cut):
    """With blocks of any size, partial lines, and a record that is being written."""
    log = tmp_path / "0.log"
    tags = {True: b" stdout F ", False: b" stdout P "}
    log.write_bytes(
        b"".join(T + tags[last] + piece.encode() + b"\n" for piece, last in printed) + (T[:7] if cut else b"")
    )
    *ended, unfinished = "".join(piece + ("\n" if last else "") for piece, last in printed).split("\n")
    lines = [*(f"{line}\n" for line in ended), *([unfinished] if printed and not printed[-1][1] else [])]

    found = text(log, LogQuery(tail=tail), block=block)

    assert found == "".join(lines[len(lines) - min(tail, len(lines)) :]).splitlines()


def test_a_long_log_is_streamed(log):
    log.parent.mkdir()
    with log.open("wb") as file:
        for number in range(8):
            file.write(records(*range(number * 10_000, (number + 1) * 10_000)))

    async def largest() -> tuple[int, int]:
        sizes = [len(part) async for part in await logs.read_log(log, ALL)]
        return max(sizes), len(sizes)

    most, parts = asyncio.run(largest())
    assert most <= 1 << 18
    assert parts > 8


def test_log_tail(log):
    grow(log, *range(1000))

    assert logs.log_tail(log, lines=3) == "997\n998\n999\n"
    assert logs.log_tail(log, size=6) == "8\n999\n"
    assert logs.log_tail(log.with_name("1.log")) == ""


class Container:
    """A container that prints to a followed log."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.running = True
        self.checks = 0  #: how often a reader has asked whether it runs, before it reads again
        self.stamps = count(1_000_000_000)

    def is_running(self) -> bool:
        self.checks += 1
        return self.running

    async def wait_read(self) -> None:
        """Wait until a reader has read everything once more from the beginning."""
        checks = self.checks
        while self.checks < checks + 2:  # noqa: ASYNC110 - a plain value cannot notify
            await asyncio.sleep(0.001)

    async def reopen(self) -> None:
        self.log.touch()

    async def rotate(self, **more: int) -> bool:
        limits = {"max_bytes": 1, "max_files": 5, **more}
        return await logs.rotate_log(self.log, reopen=self.reopen, now=lambda: next(self.stamps), **limits)


def followed(
    log: Path, script: Callable[[Container], list[Callable[[], object]]], tail: int | None = None
) -> list[str]:
    """The lines read while the steps of a script happen one after the other, until the container has exited."""

    async def both() -> bytes:
        container = Container(log)
        query = LogQuery(follow=True, tail=tail)
        reading = await logs.read_log(log, query, is_running=container.is_running, poll=0.001)

        async def happens() -> None:
            for step in script(container):
                await container.wait_read()
                done = step()
                if asyncio.iscoroutine(done):
                    await done
            container.running = False

        happening = asyncio.create_task(happens())
        text = b"".join([part async for part in reading])
        await happening
        return text

    return asyncio.run(asyncio.wait_for(both(), 60)).decode().splitlines()


def test_following_ends_after_the_last_line(log):
    grow(log, 1, 2, 3)

    found = followed(log, lambda _: [lambda: grow(log, 4), lambda: grow(log, 5, 6)], tail=2)

    assert found == ["2", "3", "4", "5", "6"]


def test_following_across_rotations(log):
    grow(log, 1)

    found = followed(
        log,
        lambda container: [
            container.rotate,
            lambda: grow(log, 2),
            container.rotate,
            container.rotate,  # the new log is empty and too small
            lambda: grow(log, 3),
            container.rotate,
            lambda: grow(log, 4),
        ],
    )

    assert found == ["1", "2", "3", "4"]


def test_following_a_runtime_that_reopens_its_log_late(log):
    grow(log, 1)
    old = log.with_name("0.log.20260101-000000")

    def renamed() -> None:
        log.rename(old)
        grow(old, 2)

    def reopened() -> None:
        grow(log, 4)
        grow(old, 3)

    found = followed(log, lambda _: [renamed, reopened])

    assert found == ["1", "2", "3", "4"]


def test_following_a_log_that_does_not_exist_yet(log):
    assert followed(log, lambda _: [lambda: grow(log, 1), lambda: grow(log, 2)]) == ["1", "2"]


def test_a_half_written_record_is_completed(log):
    grow(log, 1)

    def half() -> None:
        with log.open("ab") as file:
            file.write(records("half and half")[:-6])

    def rest() -> None:
        with log.open("ab") as file:
            file.write(records("half and half")[-6:])

    assert followed(log, lambda _: [half, rest]) == ["1", "half and half"]


def test_cancelled_followers_close_their_files(log):
    grow(log, 1)

    async def some() -> int:
        before = len(names_in("/proc/self/fd"))
        reading = await logs.read_log(log, LogQuery(follow=True), is_running=lambda: True, poll=0.01)
        async with aclosing(reading) as parts:
            assert await anext(parts) == b"1\n"
        return len(names_in("/proc/self/fd")) - before

    assert asyncio.run(some()) <= 0


def rotate(log: Path, times: int, **more: int) -> list[bool]:
    async def again() -> list[bool]:
        container = Container(log)
        done = []
        for number in range(times):
            grow(log, number)
            done.append(await container.rotate(**more))
        return done

    return asyncio.run(again())


def test_rotation_keeps_the_maximum_number_of_files(log):
    assert rotate(log, 8, max_files=4) == [True] * 8

    assert names_in(log.parent) == [
        "0.log",
        "0.log.20010909-014645.gz",
        "0.log.20010909-014646.gz",
        "0.log.20010909-014647",
    ]
    assert text(log) == ["5", "6", "7"]


def test_a_small_log_is_not_rotated(log):
    assert rotate(log, 2, max_bytes=1 << 20) == [False, False]
    assert names_in(log.parent) == ["0.log"]


def test_a_rotation_is_undone_if_the_runtime_does_not_reopen_the_log(log):
    grow(log, 1)

    async def failing() -> None:
        raise EnforceError("away")

    with pytest.raises(EnforceError):
        asyncio.run(logs.rotate_log(log, reopen=failing, max_bytes=1, max_files=5))

    assert names_in(log.parent) == ["0.log"]


def test_rotation_recovers_from_a_crash(log):
    grow(log, 1)
    stale = log.with_name("0.log.20010101-000000")
    grow(stale, 0)
    stale.with_name(stale.name + ".tmp").touch()
    log.rename(log.with_name("0.log.20010102-000000"))

    async def again() -> tuple[bool, bool]:
        container = Container(log)
        first = await container.rotate()
        grow(log, 2)
        return first, await container.rotate()

    assert asyncio.run(again()) == (False, True)
    assert not [name for name in names_in(log.parent) if name.endswith(".tmp")]
    assert text(log) == ["0", "1", "2"]


def test_a_log_rotates_at_most_once_a_second(log):
    grow(log, 1)

    async def twice() -> list[bool]:
        done = []
        for _ in range(2):
            reopen = Container(log).reopen
            done.append(await logs.rotate_log(log, reopen=reopen, max_bytes=1, max_files=5, now=lambda: 0.0))
            grow(log, 2)
        return done

    assert asyncio.run(twice()) == [True, False]
    assert text(log) == ["1", "2", "2"]


def test_removing_a_log_removes_its_rotated_files(rotated):
    logs.remove_logs(rotated)
    logs.remove_logs(rotated)

    assert "0.log" not in names_in(rotated.parent)
    assert logs.log_files(rotated) == ()
    assert rotated.with_name("00.log.20260101-000000").exists()
