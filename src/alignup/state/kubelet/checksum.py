"""The checksum of the kubelet's state files: 32-bit FNV-1a of a text."""

_OFFSET_BASIS = 0x811C9DC5
_PRIME = 0x01000193


def fnv1a(text: str) -> int:
    value = _OFFSET_BASIS
    for byte in text.encode():
        value = (value ^ byte) * _PRIME & 0xFFFFFFFF
    return value
