"""The fingerprint of a set of pods in NodeResourceTopology: equal for two parties that count with the same pods.

The names are hashed, not the uids: a pod that is deleted and created again under its name looks the same.
"""

from collections.abc import Iterable

from xxhash import xxh64_intdigest

PREFIX, VERSION = "pfp0", "v001"


def pod_fingerprint(pods: Iterable[tuple[str, str]]) -> str:
    """Return the fingerprint of pods, given as namespace and name."""
    hashes = sorted(
        xxh64_intdigest(name.encode(), seed=xxh64_intdigest(namespace.encode())) for namespace, name in pods
    )
    whole = xxh64_intdigest(b"".join(number.to_bytes(8, "little") for number in hashes))
    return f"{PREFIX}{VERSION}{whole:016x}"
