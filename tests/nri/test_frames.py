"""Frames and messages: what is written is read again, however it is cut, and nothing else does harm."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.nri.frames import MAX_DATA, Decoder, FrameError, Message, encode

CHANNELS = (1, 2)
streams = st.integers(0, 2**32 - 1)
bytes_ = st.one_of(st.binary(max_size=64), st.integers(4000, 9000).map(lambda size: b"x" * size))
messages = st.builds(Message, streams, st.integers(0, 255), bytes_, st.integers(0, 255))


def frames_of(data: bytes) -> list[tuple[int, bytes]]:
    frames = []
    while data:
        channel, length = struct.unpack_from(">II", data)
        frames.append((channel, data[8 : 8 + length]))
        data = data[8 + length :]
    return frames


@given(st.lists(st.tuples(st.sampled_from(CHANNELS), messages), max_size=8), st.data())
def test_messages_survive_any_cut(sent, data):
    text = b"".join(encode(channel, message) for channel, message in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    decoder = Decoder(*CHANNELS)

    received = [
        item
        for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)
        for item in decoder.feed(text[start:end])
    ]

    assert received == sent


@given(st.lists(st.tuples(st.sampled_from(CHANNELS), messages), min_size=2, max_size=6), st.data())
def test_messages_survive_interleaved_frames_of_any_size(sent, data):
    streams = dict.fromkeys(CHANNELS, b"")
    for channel, message in sent:
        streams[channel] += b"".join(frame for _, frame in frames_of(encode(channel, message)))
    decoder = Decoder(*CHANNELS)
    received: list[tuple[int, Message]] = []
    while any(streams.values()):
        channel = data.draw(st.sampled_from([channel for channel in CHANNELS if streams[channel]]))
        size = data.draw(st.integers(0, len(streams[channel])))
        part, streams[channel] = streams[channel][:size], streams[channel][size:]
        received += decoder.feed(struct.pack(">II", channel, size) + part)
        if not size:  # an empty frame is allowed, and says nothing
            streams[channel], rest = b"", streams[channel]
            received += decoder.feed(struct.pack(">II", channel, len(rest)) + rest)

    for channel in CHANNELS:
        assert [item for item in received if item[0] == channel] == [item for item in sent if item[0] == channel]


@given(st.lists(st.binary(max_size=200), max_size=10))
def test_arbitrary_bytes_give_messages_or_a_frame_error(parts):
    decoder = Decoder(*CHANNELS)
    try:
        for part in parts:
            for channel, message in decoder.feed(part):
                assert channel in CHANNELS
                assert message.data is None or len(message.data) <= MAX_DATA
    except FrameError as error:
        assert "is longer than" in str(error)


@given(messages)
def test_the_first_frame_fits_into_the_buffer_of_the_reader_and_the_rest_is_one_frame(message):
    frames = frames_of(encode(2, message))

    assert len(frames[0][1]) <= 4096
    assert len(frames) <= 2
    assert len(frames) == 1 or len(frames[0][1]) == 4096


def test_the_longest_message_is_read_whole_and_a_longer_one_is_not_written():
    message = Message(1, 1, b"x" * MAX_DATA)

    assert list(Decoder(1).feed(encode(1, message))) == [(1, message)]
    with pytest.raises(ValueError, match="longer than 4194304"):
        encode(1, Message(1, 1, b"x" * (MAX_DATA + 1)))


def test_a_message_that_is_too_long_is_reported_and_skipped_and_the_next_one_is_read():
    length = MAX_DATA + 7
    text = struct.pack(">IIBB", length, 5, 1, 0) + b"x" * length
    following = Message(7, 1, b"next")
    decoder = Decoder(1)
    received: list[tuple[int, Message]] = []
    for start in range(0, len(text), 1 << 20):
        part = text[start : start + (1 << 20)]
        received += decoder.feed(struct.pack(">II", 1, len(part)) + part)
    received += decoder.feed(encode(1, following))

    assert received == [(1, Message(5, 1, None)), (1, following)]


def test_a_frame_that_is_longer_than_any_message_ends_the_trunk():
    with pytest.raises(FrameError, match="a frame of 4294967295 bytes"):
        list(Decoder(1).feed(b"\0\0\0\1\xff\xff\xff\xff"))


def test_other_channels_are_skipped():
    text = encode(9, Message(1, 1, b"unknown")) + encode(1, Message(3, 2, b"known"))

    assert list(Decoder(1).feed(text)) == [(1, Message(3, 2, b"known"))]
