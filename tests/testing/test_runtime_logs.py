"""Log files of the runtime for tests: entries as Kubernetes' runtimes write them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import CriError
from alignup.testing.runtime.logs import MAX_ENTRY, ContainerLog
from tests.short_paths import short_directory
from tests.testing.runtimes import exited, pod, shell, started, until

ENTRY = re.compile(
    rb"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z) (?P<stream>stdout|stderr) (?P<tag>[FP]) (?P<text>.*)", re.DOTALL
)

#: What comes on a stream, piece by piece; some of it longer than an entry may be.
pieces = st.lists(
    st.tuples(
        st.sampled_from(["stdout", "stderr"]),
        st.one_of(
            st.binary(min_size=1, max_size=20),
            st.sampled_from([b"\n", b"one\ntwo\n", b"x" * (MAX_ENTRY + 1), b"x" * MAX_ENTRY]),
        ),
    ),
    max_size=8,
)


def entries(raw: bytes) -> list[tuple[str, str, bytes]]:
    found = [ENTRY.fullmatch(line) for line in raw.removesuffix(b"\n").split(b"\n") if raw]
    return [(one["stream"].decode(), one["tag"].decode(), one["text"]) for one in found if one]


@pytest.mark.parametrize(
    ("came", "written"),
    [
        pytest.param([b"one\ntwo\n"], [("F", b"one"), ("F", b"two")], id="two lines"),
        pytest.param([b"on", b"e\n"], [("F", b"one")], id="a line in two pieces"),
        pytest.param([b"\n"], [("F", b"")], id="an empty line"),
        pytest.param([b"one"], [("P", b"one")], id="a line without an end"),
        pytest.param([b"x" * MAX_ENTRY, b"\n"], [("F", b"x" * MAX_ENTRY)], id="a line that just fits"),
        pytest.param([b"x" * MAX_ENTRY + b"y\n"], [("P", b"x" * MAX_ENTRY), ("F", b"y")], id="a long line"),
        pytest.param([], [], id="nothing"),
    ],
)
def test_what_comes_is_written_in_entries(tmp_path, came, written):
    log = ContainerLog(tmp_path / "log")
    for piece in came:
        log.take("stdout", piece)
    log.take("stdout", b"")
    log.close()

    assert entries((tmp_path / "log").read_bytes()) == [("stdout", *entry) for entry in written]


@given(pieces)
def test_nothing_that_comes_is_lost(came):
    """The texts of a stream, with an end of line after each full one, are what came on it."""
    with short_directory() as place:
        log = ContainerLog(place / "log")
        for stream, piece in came:
            log.take(stream, piece)
        for stream in ("stdout", "stderr"):
            log.take(stream, b"")
        log.close()
        written = entries((place / "log").read_bytes())

    for wanted in ("stdout", "stderr"):
        told = b"".join(text + b"\n" * (tag == "F") for stream, tag, text in written if stream == wanted)
        assert told == b"".join(piece for stream, piece in came if stream == wanted)
    assert all(len(text) <= MAX_ENTRY for _, _, text in written)


@pytest.mark.anyio
async def test_both_streams_of_a_container_are_in_its_log(place, client):
    plan = shell("echo out; echo err >&2; printf unfinished", log_path="main/0.log")

    await exited(client, await started(client, plan, sandbox=pod(logs=place)))

    written = sorted(entries((place / "main" / "0.log").read_bytes()))
    assert written == [("stderr", "F", b"err"), ("stdout", "F", b"out"), ("stdout", "P", b"unfinished")]
    assert (place / "main" / "0.log").stat().st_mode & 0o777 == 0o640


@pytest.mark.anyio
async def test_on_a_terminal_there_is_one_stream(place, client):
    plan = shell("echo out; echo err >&2", tty=True, log_path="log")

    await exited(client, await started(client, plan, sandbox=pod(logs=place)))

    assert entries((place / "log").read_bytes()) == [("stdout", "F", b"out"), ("stdout", "F", b"err")]


@pytest.mark.anyio
async def test_a_log_that_was_moved_away_goes_on_in_a_new_file(place, runtime, client):
    script = "echo before; until [ -e go ]; do sleep 0.01; done; echo after; sleep 1000"
    log, old = place / "log", place / "old"
    made = await started(client, shell(script, log_path="log"), sandbox=pod(logs=place))
    await until(lambda: log.read_bytes().endswith(b"\n"))

    log.rename(old)
    await client.reopen_log(made)
    (runtime.service.options.directory / "go").touch()
    await until(lambda: log.read_bytes().endswith(b"\n"))

    assert entries(old.read_bytes()) == [("stdout", "F", b"before")]
    assert entries(log.read_bytes()) == [("stdout", "F", b"after")]


@pytest.mark.anyio
async def test_the_log_of_what_has_ended_is_left_alone(place, client):
    made = await started(client, shell("true", log_path="log"), sandbox=pod(logs=place))
    await exited(client, made)
    (place / "log").unlink()

    with pytest.raises(CriError, match="container is not running"):
        await client.reopen_log(made)

    assert not (place / "log").exists()


@pytest.mark.anyio
async def test_output_held_open_by_somebody_who_left_does_not_hold_up_the_end(place, client):
    leaves = "setsid sh -c 'echo > left; exec sleep 3' & until [ -e left ]; do sleep 0.01; done; echo out"
    plan = shell(leaves, log_path="log")

    seen = await exited(client, await started(client, plan, sandbox=pod(logs=place)))

    assert seen.exit_code == 0
    assert entries((place / "log").read_bytes()) == [("stdout", "F", b"out")]
