"""The bytes between a container runtime and its NRI plugins, without any input or output.

One socket, the trunk, carries several channels. Each *frame* on it has a header of eight bytes, the channel and the
length, both big-endian. The bytes of a channel are a stream of ttrpc *messages*: ten bytes of header (length, stream,
type, flags), and up to 4 MiB of data. Frames and messages need not begin or end together.

The surprising rule is about writing: runtimes read a channel through a buffer of 4,096 bytes, fail on a frame that is
larger than what they ask for, and close the trunk when more than 256 frames wait. So the first frame of a message fits
into that buffer, and the rest of it is one frame.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

MAX_DATA = 4 << 20  #: bytes of a message
PLUGIN_CHANNEL = 1  #: on which the runtime calls the plugin
RUNTIME_CHANNEL = 2  #: on which the plugin calls the runtime

_FRAME = struct.Struct(">II")  #: channel, length
_MESSAGE = struct.Struct(">IIBB")  #: length, stream, type, flags
_MAX_FRAME = MAX_DATA + _MESSAGE.size
_FIRST_FRAME = 4096


class FrameError(Exception):
    """Bytes after which nothing on the trunk can be understood."""


class MessageType(IntEnum):
    REQUEST = 1
    RESPONSE = 2
    DATA = 3  #: of streaming calls, which NRI does not have


@dataclass(frozen=True, slots=True)
class Message:
    stream: int  #: odd if the client opened it
    type: int  #: a ``MessageType``, or one that is not known
    data: bytes | None  #: ``None`` if it was longer than ``MAX_DATA``, and left out
    flags: int = 0


def encode(channel: int, message: Message) -> bytes:
    """Return the frames of *message*; ``ValueError`` if it is too long."""
    data = message.data or b""
    if len(data) > MAX_DATA:
        raise ValueError(f"a message of {len(data)} bytes is longer than {MAX_DATA}")
    whole = _MESSAGE.pack(len(data), message.stream, message.type, message.flags) + data
    parts = (whole[:_FIRST_FRAME], whole[_FIRST_FRAME:])
    return b"".join(_FRAME.pack(channel, len(part)) + part for part in parts if part)


class Decoder:
    """Turns what is read from a trunk into messages; keeps at most one incomplete message for each channel."""

    def __init__(self, *channels: int) -> None:
        self._channels = {channel: _Channel() for channel in channels}
        self._header = b""  #: the beginning of a frame header
        self._channel = 0  #: of the frame that is being read
        self._left = 0  #: bytes of that frame

    def feed(self, data: bytes) -> Iterator[tuple[int, Message]]:
        """Yield the messages that *data* completes, with their channel; ``FrameError`` ends the trunk.

        Channels that were not named are skipped.
        """
        view = memoryview(data)
        while view:
            if not self._left:
                view = self._read_header(view)
                continue
            part, view = view[: self._left], view[self._left :]
            self._left -= len(part)
            if channel := self._channels.get(self._channel):
                yield from ((self._channel, message) for message in channel.feed(part))

    def _read_header(self, view: memoryview) -> memoryview:
        missing_bytes = _FRAME.size - len(self._header)
        self._header += view[:missing_bytes]
        if len(self._header) == _FRAME.size:
            channel, length = _FRAME.unpack(self._header)
            self._channel = channel
            self._left = length
            self._header = b""
            if length > _MAX_FRAME:
                raise FrameError(f"a frame of {length} bytes is longer than {_MAX_FRAME}")
        return view[missing_bytes:]


class _Channel:
    """The incomplete message of one channel."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._skip = 0  #: bytes of a message that is too long

    def feed(self, part: memoryview) -> Iterator[Message]:
        while True:
            skipped_bytes = min(self._skip, len(part))
            self._skip -= skipped_bytes
            part = part[skipped_bytes:]
            # A header first, and then no more than its message: the buffer never grows beyond one message.
            needed_bytes = self._needed()
            chunk, part = part[: needed_bytes - len(self._buffer)], part[needed_bytes - len(self._buffer) :]
            self._buffer += chunk
            if len(self._buffer) < needed_bytes:
                return
            if (message := self._complete()) is not None:
                yield message

    def _needed(self) -> int:
        if len(self._buffer) < _MESSAGE.size:
            return _MESSAGE.size
        return _MESSAGE.size + int.from_bytes(self._buffer[:4], "big")

    def _complete(self) -> Message | None:
        """Return the message if all of it is there, or if it is too long."""
        length, stream, type_, flags = _MESSAGE.unpack_from(self._buffer)
        if length > MAX_DATA:
            self._skip = length
            self._buffer.clear()
            return Message(stream, type_, None, flags)
        if len(self._buffer) < _MESSAGE.size + length:
            return None
        data = bytes(memoryview(self._buffer)[_MESSAGE.size :])
        self._buffer = bytearray()
        return Message(stream, type_, data, flags)
