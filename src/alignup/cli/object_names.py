"""Names of objects (``web``, ``pod/web``, ``ml/web``, ``deployment/web``) and label selectors, as for kubectl."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from alignup.cli.app import InputError, Place

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


_REQUIREMENT = re.compile(
    r"\s*(?:(?P<absent>!)\s*(?P<missing>[^\s!=,()]+)"
    r"|(?P<key>[^\s!=,()]+)\s*(?:(?P<operator>==?|!=)\s*(?P<value>[^\s!=,()]*)"
    r"|\s(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?)\s*(?:,|$)"
)


class LabelRequirement(NamedTuple):
    """A condition on one label."""

    key: str
    values: frozenset[str] | None = None  #: ``None``: any
    required: bool = True  #: whether a label with one of the values is required, or excluded

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        has = value is not None and (self.values is None or value in self.values)
        return has is self.required


def parse_selector(text: str) -> tuple[LabelRequirement, ...]:
    """Return the conditions of a label selector: ``app=web,tier!=db,zone in (a,b),gpu,!spot``."""
    requirements, position = [], 0
    while position < len(text):
        match = _REQUIREMENT.match(text, position)
        if match is None:
            advice = "Write it as for kubectl: app=web, app!=web, 'app in (a,b)', app or !app, separated by commas."
            raise InputError(f"{text!r} is not a label selector", place=Place("-l"), advice=advice)
        position = match.end()
        if match["absent"]:
            requirements.append(LabelRequirement(match["missing"], required=False))
        elif match["set"]:
            values = frozenset(value.strip() for value in match["values"].split(","))
            requirements.append(LabelRequirement(match["key"], values, required=match["set"] == "in"))
        elif match["operator"]:
            values = frozenset([match["value"]])
            requirements.append(LabelRequirement(match["key"], values, required=match["operator"] != "!="))
        else:
            requirements.append(LabelRequirement(match["key"]))
    return tuple(requirements)
