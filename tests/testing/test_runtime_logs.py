"""Log files of the test runtime in the CRI log format."""

import asyncio
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import CriError
from alignup.testing.runtime.process import MAX_LOG_ENTRY, ChildProcess, ContainerLog
from tests.deadlines import until
from tests.short_paths import short_directory
from tests.testing.runtimes import is_running, pod, shell, start_container, wait_exited

ENTRY = re.compile(
    rb"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z) (?P<stream>stdout|stderr) (?P<tag>[FP]) (?P<text>.*)", re.DOTALL
)

#: Output of both streams in pieces, some of them longer than an entry.
outputs = st.lists(
    st.tuples(
        st.sampled_from(["stdout", "stderr"]),
        st.one_of(
            st.binary(min_size=1, max_size=20),
            st.sampled_from([b"\n", b"one\ntwo\n", b"x" * (MAX_LOG_ENTRY + 1), b"x" * MAX_LOG_ENTRY]),
        ),
    ),
    max_size=8,
)


def entries(raw: bytes) -> list[tuple[str, str, bytes]]:
    found = [ENTRY.fullmatch(line) for line in raw.removesuffix(b"\n").split(b"\n") if raw]
    return [(one["stream"].decode(), one["tag"].decode(), one["text"]) for one in found if one]


@pytest.mark.parametrize(
    ("pieces", "written"),
    [
        pytest.param([b"one\ntwo\n"], [("F", b"one"), ("F", b"two")], id="two lines"),
        pytest.param([b"on", b"e\n"], [("F", b"one")], id="a line in two pieces"),
        pytest.param([b"\n"], [("F", b"")], id="an empty line"),
        pytest.param([b"one"], [("P", b"one")], id="a line without an end"),
        pytest.param([b"x" * MAX_LOG_ENTRY, b"\n"], [("F", b"x" * MAX_LOG_ENTRY)], id="a line of maximum length"),
        pytest.param([b"x" * MAX_LOG_ENTRY + b"y\n"], [("P", b"x" * MAX_LOG_ENTRY), ("F", b"y")], id="a long line"),
        pytest.param([], [], id="no output"),
    ],
)
def test_output_becomes_entries(tmp_path, pieces, written):
    log = ContainerLog(tmp_path / "log")
    for piece in pieces:
        log.take("stdout", piece)
    log.take("stdout", b"")
    log.close()

    assert entries((tmp_path / "log").read_bytes()) == [("stdout", *entry) for entry in written]


@given(outputs)
def test_no_output_is_lost(pieces):
    """The texts of a stream, with a newline after each full one, are its output."""
    with short_directory() as root:
        log = ContainerLog(root / "log")
        for stream, piece in pieces:
            log.take(stream, piece)
        for stream in ("stdout", "stderr"):
            log.take(stream, b"")
        log.close()
        written = entries((root / "log").read_bytes())

    for wanted in ("stdout", "stderr"):
        logged = b"".join(text + b"\n" * (tag == "F") for stream, tag, text in written if stream == wanted)
        assert logged == b"".join(piece for stream, piece in pieces if stream == wanted)
    assert all(len(text) <= MAX_LOG_ENTRY for _, _, text in written)


@pytest.mark.anyio
async def test_both_streams_are_logged(root, client):
    config = shell("echo out; echo err >&2; printf unfinished", log_path="main/0.log")

    await wait_exited(client, await start_container(client, config, sandbox=pod(logs=root)))

    written = sorted(entries((root / "main" / "0.log").read_bytes()))
    assert written == [("stderr", "F", b"err"), ("stdout", "F", b"out"), ("stdout", "P", b"unfinished")]
    assert (root / "main" / "0.log").stat().st_mode & 0o777 == 0o640


@pytest.mark.anyio
async def test_a_terminal_has_one_stream(root, client):
    config = shell("echo out; echo err >&2", tty=True, log_path="log")

    await wait_exited(client, await start_container(client, config, sandbox=pod(logs=root)))

    assert entries((root / "log").read_bytes()) == [("stdout", "F", b"out"), ("stdout", "F", b"err")]


@pytest.mark.anyio
async def test_a_reopened_log_continues_in_a_new_file(root, runtime, client):
    script = "echo before; until [ -e go ]; do sleep 0.01; done; echo after; sleep 1000"
    log, old = root / "log", root / "old"
    made = await start_container(client, shell(script, log_path="log"), sandbox=pod(logs=root))
    await until(lambda: log.read_bytes().endswith(b"\n"))

    log.rename(old)
    await client.reopen_log(made)
    (runtime.directory / "go").touch()
    await until(lambda: log.read_bytes().endswith(b"\n"))

    assert entries(old.read_bytes()) == [("stdout", "F", b"before")]
    assert entries(log.read_bytes()) == [("stdout", "F", b"after")]


@pytest.mark.anyio
async def test_the_log_of_an_exited_container_is_not_reopened(root, client):
    made = await start_container(client, shell("true", log_path="log"), sandbox=pod(logs=root))
    await wait_exited(client, made)
    (root / "log").unlink()

    with pytest.raises(CriError, match="container is not running"):
        await client.reopen_log(made)

    assert not (root / "log").exists()


@pytest.mark.anyio
async def test_a_descendant_that_keeps_the_output_open_does_not_delay_the_exit(root):
    stays = "echo $$ > left; until [ -e end ]; do sleep 0.01; done"
    command = f"setsid sh -c '{stays}' & until [ -s left ]; do sleep 0.01; done; echo out"
    log = ContainerLog(root / "log")
    process = ChildProcess(
        ("sh", "-c", command),
        cwd=root,
        env={"PATH": os.environ["PATH"]},
        cpus=frozenset(),
        stdin=False,
        merge_output=False,
        take=log.take,
        drain=0.1,
    )
    async with asyncio.timeout(60):
        code = await process.wait()
    log.close()
    descendant = int((root / "left").read_text())
    stayed = is_running(descendant)
    (root / "end").touch()
    await until(lambda: not is_running(descendant))

    assert (code, stayed) == (0, True)
    assert entries((root / "log").read_bytes()) == [("stdout", "F", b"out")]
