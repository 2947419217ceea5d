"""All errors of the package, as one tree below ``AlignError``.

Outside ``align``, the rejection of a pod is a decision, not an exception.
"""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from alignup.align.reason_codes import UNEXPECTED_ADMISSION

#: Ends the message of an error that Kubernetes would not report: the input exceeds a limit of this package.
OWN_LIMIT = "(a limit of alignup)"
_MAX_SHOWN = 64  #: characters of a malformed value


class AlignError(Exception):
    """The base of all errors that this package raises on purpose."""


class ParseError(AlignError, ValueError):
    """A malformed text; the message contains the location and the reason."""


class FieldError(ParseError):
    """A bad value in a document; ``field`` is its path, such as ``nodes[1].memory``."""

    def __init__(self, message: str, *, field: str) -> None:
        self.message = message
        self.field = field
        super().__init__(f"{field}: {message}")


class QuantityError(ParseError):
    """A malformed Kubernetes quantity; ``message`` is Kubernetes' own, ``value`` the text, if there is one."""

    def __init__(self, message: str, *, value: str | None = None) -> None:
        self.message = message
        self.value = value
        if value is not None and len(value) > _MAX_SHOWN:
            value = f"{value[:_MAX_SHOWN]}…"
        super().__init__(message if value is None else f"{json.dumps(value, ensure_ascii=False)}: {message}")


class DocumentError(ParseError):
    """A malformed YAML or JSON text; ``line`` and ``document`` count from 1.

    ``own_limit``: Kubernetes would read the text, but it exceeds a limit of this package.
    """

    def __init__(self, message: str, *, line: int, document: int = 1, own_limit: bool = False) -> None:
        message = f"{message} {OWN_LIMIT}" if own_limit else message
        self.message = message
        self.line = line
        self.document = document
        self.own_limit = own_limit
        super().__init__(f"line {line}: {message}")


class MachineError(AlignError, ValueError):
    """Contradictory facts about a machine, all of them in ``problems``."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(problems))


class FileFieldError(AlignError):
    """A problem of a file that people write, as ``FILE:LINE: FIELD: message``.

    ``file``, ``line`` and ``field`` are empty or 0 if unknown; then the text omits them, or *message* names them.
    """

    def __init__(self, message: str, *, file: str = "", line: int = 0, field: str = "") -> None:
        self.message = message
        self.file = file
        self.line = line
        self.field = field
        prefix = f"{file}:{line}" if file and line else file or (f"line {line}" if line else "")
        super().__init__(": ".join(part for part in (prefix, field, message) if part))


class SourceError(FileFieldError):
    """A file, directory, archive or text without a readable machine."""


class ProblemKind(StrEnum):
    """The kinds of problems that programs tell apart."""

    NOT_A_STRING = "not a string"
    OTHER_TYPE = "other type"  #: another wrong type
    QUANTITY = "quantity"  #: not a quantity
    UNKNOWN_FIELD = "unknown field"
    UNKNOWN_GATE = "unknown gate"
    LOCKED_GATE = "locked gate"  #: of a feature gate that cannot be set to this value
    OWN_LIMIT = "own limit"  #: of this package, not of Kubernetes
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of one field of a document; ``field`` is its path, empty for the whole document."""

    field: str
    message: str
    kind: ProblemKind = dataclasses.field(default=ProblemKind.OTHER, compare=False)
    line: int = 0  #: of a document that cannot be parsed; 0: unknown

    def __str__(self) -> str:
        prefix = self.field or (f"line {self.line}" if self.line else "")
        return f"{prefix}: {self.message}" if prefix else self.message


class PodError(AlignError, ValueError):
    """A pod that is rejected before alignment, with all ``problems``."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(map(str, problems)))


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A place in a file of one or several documents."""

    file: str
    document: int | None = None  #: from 1; ``None``: the file has only one
    line: int | None = None  #: from 1; ``None``: unknown

    def __str__(self) -> str:
        if self.line:
            return f"{self.file}:{self.line}"
        return f"{self.file}, document {self.document}" if self.document else self.file


@dataclass(frozen=True, slots=True)
class LocatedProblem:
    location: SourceLocation
    problem: Problem
    object_name: str = ""  #: such as ``Pod web``

    def __str__(self) -> str:
        name = f" ({self.object_name})" if self.object_name else ""
        return f"{self.location}: {self.problem}{name}"


class ManifestError(AlignError, ValueError):
    """Unreadable workload files; the message has one line per problem."""

    def __init__(self, problems: Sequence[LocatedProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.lines()))

    def lines(self, most: int = 20) -> tuple[str, ...]:
        """Return the first *most* problems as text."""
        texts = tuple(map(str, self.problems[:most]))
        more = len(self.problems) - len(texts)
        return (*texts, f"and {more:,} more") if more else texts


class SettingsError(AlignError, ValueError):
    """An option, gate or combination with which the kubelet would not start; the message is the kubelet's.

    ``manager`` is the manager that would fail, if known: topology, cpu or memory.
    """

    manager: str | None = None


class ConfigurationError(SettingsError):
    """An invalid KubeletConfiguration; ``stage`` is the failing stage of the kubelet's start, ``source`` the file."""

    def __init__(self, problems: Sequence[Problem], *, stage: str, source: str = "", advice: str | None = None) -> None:
        self.problems = tuple(problems)
        self.stage = stage
        self.source = source
        self.advice = advice
        # At other stages, each message is the kubelet's own and complete without the field.
        bare = stage not in {"load", "eviction_hard"}
        text = "; ".join(problem.message if bare else str(problem) for problem in problems)
        super().__init__("\\n".join(text.splitlines()))


class StateError(AlignError, ValueError):
    """A stored assignment that does not match this machine or these settings; the message is the kubelet's."""


class RestoreError(StateError):
    """Resources that pods held and that this host no longer has; ``problems`` lists all of them.

    Without the pods in ``uids``, the others can be restored, unless a problem belongs to no pod.
    """

    def __init__(self, problems: Sequence[str], *, uids: Sequence[str]) -> None:
        self.problems = tuple(problems)
        self.uids = tuple(uids)
        super().__init__("; ".join(problems))


class StoreProblem(StrEnum):
    """What is wrong with a database, which decides what a program can offer to do about it."""

    UNUSABLE = "unusable"  #: corrupt, foreign, or of another version; it can be set aside
    INCOMPLETE = "incomplete"  #: changes that were acknowledged are missing; the rest can be used
    MISSING = "missing"  #: removed while it was open
    IN_USE = "in use"  #: by another process
    UNTRUSTED = "untrusted"  #: other users can change it
    UNWRITABLE = "unwritable"
    FULL = "full"  #: the ledger has as many bytes as it may have


class StoreError(StateError):
    """An unusable database or state directory: ``where`` it is, the ``message``, and what to do."""

    def __init__(self, message: str, *, where: str, advice: str, kind: StoreProblem) -> None:
        self.message = message
        self.where = where
        self.advice = advice
        self.kind = kind
        super().__init__(f"{where}: {message}; {advice}")


class StoreFullError(StoreError):
    """The ledger would have more bytes than it may have; nothing was written."""

    def __init__(self, where: str, *, size: int, limit: int) -> None:
        message = f"the ledger is full: it would have {size:,} bytes, and the limit is {limit:,} bytes"
        advice = "release pods, or admit pods with fewer labels and annotations"
        super().__init__(message, where=where, advice=advice, kind=StoreProblem.FULL)


class TraceError(FileFieldError, ValueError):
    """An unreadable trace, cluster file, sweep file or file of results."""


class FileError(AlignError):
    """A state file that cannot be read or written; the message has the file, the reason, and what to do."""


class EnforceError(AlignError):
    """A decision that cannot be enforced or inspected on this machine."""


class ListenError(AlignError):
    """A socket or address that the program cannot listen on; the message has the reason and what to do."""


class SocketPathError(ListenError):
    """A path that is too long for a Unix socket."""


class TlsRequiredError(ListenError):
    """A non-loopback address without TLS, which nobody allowed."""


class PluginError(AlignError):
    """A device plugin that is unreachable, gone, or failed; the message is the kubelet's."""


class ProviderError(AlignError):
    """A request that a provider cannot serve, so that the pod is rejected.

    ``reason`` and ``message`` are the kubelet's, for the pod's status; ``str(error)`` is the provider's own text. As in
    the kubelet, an error without a reason is wrapped. ``residue`` is the provider's ledger afterwards where a kubelet
    keeps a part of what it allocated; ``None``: it keeps nothing.
    """

    residue: Any = None

    def __init__(self, text: str, *, reason: str | None = None) -> None:
        super().__init__(text)
        self.reason = reason or UNEXPECTED_ADMISSION
        self.message = text if reason else f"Allocate failed due to {text}, which is unexpected"


class WorkLimitError(AlignError):
    """An exact result that would take more work than allowed; ``sources`` are the resources that cause it."""

    def __init__(self, message: str, *, sources: Sequence[str]) -> None:
        super().__init__(message)
        self.sources = tuple(sources)
