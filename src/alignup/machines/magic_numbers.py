"""The first bytes of compressed files; apart from ``compression``, which is slow to import."""

GZIP, BZIP2, XZ, ZSTD = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"


def is_compressed(head: bytes) -> bool:
    return head.startswith((GZIP, BZIP2, XZ, ZSTD))
