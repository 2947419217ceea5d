"""Manifests in links, so that a question can be shared, and examples to start from."""

import base64
import binascii
import zlib

_MAX_BYTES = 256 << 10

_CONTAINERS = """\
containers:
- name: train
  image: registry.example/train
  resources:
    limits: {cpu: "8", memory: 16Gi}
"""


def _indented(text: str, width: int) -> str:
    return "".join(f"{' ' * width}{line}\n" for line in text.splitlines())


EXAMPLES = {
    "a pod": f"""\
apiVersion: v1
kind: Pod
metadata: {{name: trainer}}
spec:
{_indented(_CONTAINERS, 2)}""",
    "eight pods of a Job": f"""\
apiVersion: batch/v1
kind: Job
metadata: {{name: trainer}}
spec:
  parallelism: 8
  completions: 8
  completionMode: Indexed
  template:
    spec:
      restartPolicy: Never
{_indented(_CONTAINERS, 6)}""",
}


def share(manifest: str) -> str:
    """Return *manifest* as text for a link."""
    return base64.urlsafe_b64encode(zlib.compress(manifest.encode("utf-8", "replace"), 9)).decode().rstrip("=")


def read_shared(text: str) -> str:
    """Return the manifest of a link; empty if it cannot be read."""
    try:
        packed_text = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return zlib.decompressobj().decompress(packed_text, _MAX_BYTES).decode("utf-8")
    except (binascii.Error, zlib.error, ValueError):
        return ""
