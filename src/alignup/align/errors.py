"""Everything that can go wrong in the heart, as one tree.

AlignError
├── ParseError          a text (list, quantity, synthetic machine) cannot be read
│   ├── QuantityError   a Kubernetes quantity, with the kubelet's own sentence
│   └── DocumentError   a YAML or JSON text, with the line
├── MachineError        facts about a machine contradict each other
├── SourceError         a file, directory, archive or text holds no machine that can be read
├── PodError            a pod the API server or the kubelet would refuse, field by field
├── ManifestError       files of workloads that cannot be read, each problem with its place
├── SettingsError       an option, gate or combination the kubelet would refuse to start with
│   └── ConfigurationError   a KubeletConfiguration file, refused at a stage of the kubelet's start
├── StateError          a stored assignment does not belong to this machine or these settings
│   ├── HoldingsError   what pods held cannot be theirs any more, each thing with its pod and container
│   └── CheckpointError a checkpoint cannot be read, trusted or written, with where and what to do
├── FileError           a file of state cannot be read or written
├── EnforceError        what was decided cannot be made so on this machine, and why
│   └── CriError        a container runtime cannot be reached, or did not do as it was told
├── ListenError         a socket, an address or the token that guards it is no good
├── PluginError         a device plugin cannot be reached, is gone, or says no
├── TraceError          a trace of pods coming and going that cannot be read
├── ProviderError       a provider cannot serve a request: the pod is refused, with reason and message
└── WorkLimitError      deciding exactly would take more work than allowed

Refusing a pod is a decision, not an exception, once it leaves ``align``.
"""

from collections.abc import Sequence
from dataclasses import dataclass


class AlignError(Exception):
    """Base of all errors raised on purpose by this package."""


class ParseError(AlignError, ValueError):
    """A text cannot be read; the message says where and why."""


class QuantityError(ParseError):
    """A text is no Kubernetes quantity; the message is the one Kubernetes gives."""


class DocumentError(ParseError):
    """A YAML or JSON text cannot be read; ``line`` and ``document`` say where (both from 1), ``what`` why."""

    def __init__(self, what: str, *, line: int, document: int = 1) -> None:
        self.what = what
        self.line = line
        self.document = document
        super().__init__(f"line {line}: {what}")


class MachineError(AlignError, ValueError):
    """Facts about a machine contradict each other; ``problems`` lists each one."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(problems))


class SourceError(AlignError):
    """A file, directory, archive or text holds no machine that can be read; the message says what was tried."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with one field of a document; ``field`` is its path, empty for the document as a whole."""

    field: str
    what: str

    def __str__(self) -> str:
        return f"{self.field}: {self.what}" if self.field else self.what


class PodError(AlignError, ValueError):
    """A pod that would be refused before any alignment; ``problems`` lists each one, with its field."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(map(str, problems)))


@dataclass(frozen=True, slots=True)
class LocatedProblem:
    """A problem and the place it is in: a file, as a rule with a document, a line and the name of an object."""

    where: str
    problem: Problem

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


class ManifestError(AlignError, ValueError):
    """Files of workloads that cannot be read; ``problems`` lists each problem with its place, a line each."""

    def __init__(self, problems: Sequence[LocatedProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.lines()))

    @property
    def where(self) -> str:
        """The place of the first."""
        return self.problems[0].where

    def lines(self, most: int = 20) -> tuple[str, ...]:
        """The problems for a person to read, not more than *most* of them."""
        shown = tuple(map(str, self.problems[:most]))
        left = len(self.problems) - len(shown)
        return (*shown, f"and {left:,} more") if left else shown


class SettingsError(AlignError, ValueError):
    """An option, gate or combination the kubelet would refuse to start with; the message is the kubelet's.

    ``manager`` says which of its managers would refuse, where that is known: topology, cpu, memory.
    """

    manager: str | None = None


class ConfigurationError(SettingsError):
    """A KubeletConfiguration a kubelet would not start with.

    ``stage`` says how far it would come, ``problems`` what is wrong with which field, and ``source`` which file it was.
    ``advice`` is one line about what to do, where there is something to say.
    """

    def __init__(self, problems: Sequence[Problem], *, stage: str, source: str = "", advice: str | None = None) -> None:
        self.problems = tuple(problems)
        self.stage = stage
        self.source = source
        self.advice = advice
        # At other stages each sentence is the kubelet's own and says by itself what it is about.
        bare = stage not in {"load", "eviction_hard"}
        text = "; ".join(one.what if bare else str(one) for one in problems)
        super().__init__("\\n".join(text.splitlines()))


class StateError(AlignError, ValueError):
    """A stored assignment does not fit this machine or these settings; the message is the kubelet's."""


class RestoreError(StateError):
    """What pods held cannot be theirs again on this host as it is now; ``problems`` lists each thing.

    Without the pods in ``uids`` the others could have theirs, unless the trouble is nobody's in particular.
    """

    def __init__(self, problems: Sequence[str], *, uids: Sequence[str]) -> None:
        self.problems = tuple(problems)
        self.uids = tuple(uids)
        super().__init__("; ".join(problems))


class CheckpointError(StateError):
    """A checkpoint, or the directory it is in, that is no good: ``what`` is wrong, ``where``, and what to do."""

    def __init__(self, what: str, *, where: str, advice: str) -> None:
        self.what, self.where, self.advice = what, where, advice
        super().__init__(f"{where}: {what}; {advice}")


class TraceError(AlignError, ValueError):
    """A trace that cannot be read; ``file``, ``line`` and ``field`` say where, as far as that is known."""

    def __init__(self, what: str, *, file: str = "", line: int = 0, field: str = "") -> None:
        self.what, self.file, self.line, self.field = what, file, line, field
        places = (file, f"line {line}" if line else "", field)
        where = ", ".join(place for place in places if place)
        super().__init__(f"{where}: {what}" if where else what)


class FileError(AlignError):
    """A file of state cannot be read or written; the message says which, why, and what to do."""


class EnforceError(AlignError):
    """What was decided cannot be made so, or looked at, on this machine; the message says what, where and why."""


class CriError(EnforceError):
    """A container runtime cannot be reached, or did not do as it was told; the message names what it was told.

    ``code`` is gRPC's name of the failure (``NOT_FOUND``), and ``details`` is what the runtime said. ``image_missing``:
    it does not have the image, or nobody has.
    """

    def __init__(self, text: str, *, code: str, details: str = "", image_missing: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.details = details
        self.image_missing = image_missing

    @property
    def not_found(self) -> bool:
        """Whether what the call was about is not there (any more)."""
        return self.code == "NOT_FOUND"

    @property
    def unavailable(self) -> bool:
        """Whether the runtime is away; what was asked may have been done, if it left in the middle."""
        return self.code in {"UNAVAILABLE", "CANCELLED"}

    @property
    def timed_out(self) -> bool:
        """Whether it took too long; it may come about all the same."""
        return self.code == "DEADLINE_EXCEEDED"


class ListenError(AlignError):
    """A socket or address cannot be listened on as asked; the message says which, why, and what to do."""


class PluginError(AlignError):
    """A device plugin cannot be reached, is gone, or says no; the message is the kubelet's."""


class ProviderError(AlignError):
    """A provider cannot serve a request, so the pod is refused.

    ``reason`` and ``message`` are what the pod's status shows, word for word as the kubelet would say it;
    ``str(error)`` is the provider's own text. Errors without a reason of their own are wrapped the kubelet's way.
    """

    def __init__(self, text: str, *, reason: str | None = None) -> None:
        super().__init__(text)
        self.reason = reason or "UnexpectedAdmissionError"
        self.message = text if reason else f"Allocate failed due to {text}, which is unexpected"


class WorkLimitError(AlignError):
    """Deciding exactly would take more work than allowed; ``sources`` names who made it hard."""

    def __init__(self, message: str, *, sources: Sequence[str]) -> None:
        super().__init__(message)
        self.sources = tuple(sources)
