"""Names of objects as kubectl takes them: ``web``, ``pod/web``, ``ml/web``, ``deployment/web``."""

from collections.abc import Sequence
from typing import NamedTuple

_SHORT_NAMES = {
    "CronJob": ("cj",),
    "DaemonSet": ("ds",),
    "Deployment": ("deploy",),
    "Job": (),
    "Pod": ("po",),
    "ReplicaSet": ("rs",),
    "ReplicationController": ("rc",),
    "StatefulSet": ("sts",),
}
#: What people write for a kind → the kind.
_KINDS = {word: kind for kind, short in _SHORT_NAMES.items() for word in (kind.lower(), f"{kind.lower()}s", *short)}


class ObjectName(NamedTuple):
    kind: str
    namespace: str  #: empty: not given
    name: str

    def matches(self, kind: str, namespace: str, name: str) -> bool:
        return (kind, name) == (self.kind, self.name) and self.namespace in ("", namespace)


def parse_object_name(text: str, namespace: str = "") -> ObjectName:
    """Return the object that *text* names; the name of a namespace in it counts more than *namespace*."""
    first, slash, rest = text.partition("/")
    if not slash:
        return ObjectName("Pod", namespace, text)
    kind = _KINDS.get(first.lower().partition(".")[0])
    return ObjectName(kind, namespace, rest) if kind else ObjectName("Pod", first, rest)


def parse_object_names(words: Sequence[str], namespace: str = "") -> list[ObjectName]:
    """Like :func:`parse_object_name` for each of *words*; ``pod a b`` is ``pod/a pod/b``."""
    if len(words) > 1 and "/" not in words[0] and words[0].lower() in _KINDS:
        words = [f"{words[0]}/{word}" for word in words[1:]]
    return [parse_object_name(word, namespace) for word in words]
