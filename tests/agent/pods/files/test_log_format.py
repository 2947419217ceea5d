"""Log records, in chunks of any size, decode to the printed lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.agent.pods.files.logs import MAX_LINE_BYTES, LogDecoder, ends_line

T = b"2026-01-31T23:59:59.5Z"


def decoded(*pieces: bytes, timestamps: bool = False, skip: int = 0) -> bytes:
    decoder = LogDecoder(timestamps=timestamps)
    decoder.skip = skip
    return b"".join(decoder.feed(piece) for piece in pieces) + decoder.finish()


@pytest.mark.parametrize(
    ("log", "text"),
    [
        pytest.param(T + b" stdout F one\n" + T + b" stderr F two\n", b"one\ntwo\n", id="both streams"),
        pytest.param(T + b" stdout F \n", b"\n", id="an empty line"),
        pytest.param(T + b" stdout F  a  b \n", b" a  b \n", id="blanks are kept"),
        pytest.param(T + b" stdout P on\n" + T + b" stdout F e\n", b"one\n", id="partial records"),
        pytest.param(
            T + b" stdout P on\n" + T + b" stderr F two\n" + T + b" stdout F e\n",
            b"two\none\n",
            id="partial records of two lines",
        ),
        pytest.param(T + b" stdout P:new on\n" + T + b" stdout F:new:er e\n", b"one\n", id="unknown tags"),
        pytest.param(T + b" stdout P prompt> ", b"prompt> ", id="an incomplete line"),
        pytest.param(T + b" stdout F cut", b"cut\n", id="an incomplete record"),
        pytest.param(b"nonsense\n\n" + T + b" stdin F x\n" + T + b" stdout F\n", b"", id="invalid records"),
        pytest.param(b"yesterday stdout F x\n" + T + b" stdout F y\n", b"y\n", id="an invalid time"),
        pytest.param(T + b" stdout F \xff\x00\n", b"\xff\x00\n", id="any bytes"),
        pytest.param(b"", b"", id="nothing"),
    ],
)
def test_decode(log, text):
    assert decoded(log) == text


@pytest.mark.parametrize(
    ("time", "shown"),
    [
        (b"2026-01-31T23:59:59Z", b"2026-01-31T23:59:59.000000000Z"),
        (b"2026-01-31T23:59:59.12Z", b"2026-01-31T23:59:59.120000000Z"),
        (b"2026-01-31T23:59:59.123456789+02:00", b"2026-01-31T23:59:59.123456789+02:00"),
    ],
)
def test_timestamps_have_nine_digits_and_precede_lines_only(time, shown):
    log = time + b" stdout P on\n" + T + b" stdout F e\n"

    assert decoded(log, timestamps=True) == shown + b" one\n"


lines = st.lists(
    st.tuples(st.sampled_from([b"stdout", b"stderr"]), st.lists(st.binary(max_size=5), min_size=1, max_size=3)),
    max_size=8,
)


@given(lines, st.randoms(use_true_random=False))
def test_chunk_sizes_do_not_change_the_result(printed, random):
    log, text = b"", []
    for stream, pieces in printed:
        clean = [piece.replace(b"\n", b"") for piece in pieces]
        log += b"".join(T + b" " + stream + b" P " + piece + b"\n" for piece in clean[:-1])
        log += T + b" " + stream + b" F " + clean[-1] + b"\n"
        text.append(b"".join(clean) + b"\n")
    cuts = sorted(random.choices(range(len(log) + 1), k=3))
    pieces = [log[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(log)], strict=True)]

    for skip in range(3):
        assert decoded(*pieces, skip=skip) == b"".join(text[skip:])


def test_an_endless_line_is_not_kept_in_memory():
    decoder = LogDecoder(timestamps=True)
    piece = T + b" stdout P " + b"x" * 16384 + b"\n"
    total = 0

    for _ in range(200):
        total += len(decoder.feed(piece))
        assert sum(map(len, decoder._partial.values())) <= MAX_LINE_BYTES + len(piece)  # noqa: SLF001

    assert total + len(decoder.finish()) == 200 * 16384 + len("2026-01-31T23:59:59.500000000Z ")


def test_an_endless_record_is_skipped():
    decoder = LogDecoder()
    for _ in range(20):
        assert decoder.feed(b"x" * (MAX_LINE_BYTES // 4)) == b""
        assert len(decoder._rest) <= MAX_LINE_BYTES  # noqa: SLF001

    assert decoder.feed(b"\n" + T + b" stdout F after\n") == b"after\n"


@pytest.mark.parametrize(
    ("record", "ends"),
    [(T + b" stdout F x", True), (T + b" stderr P x", False), (T + b" stdout F " + b"x" * 999, True), (b"x", False)],
)
def test_ends_line(record, ends):
    assert ends_line(record) is ends
