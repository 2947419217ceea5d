"""Everything that can go wrong in the heart, as one tree.

AlignError
├── ParseError          a text (list, quantity, synthetic machine) cannot be read
│   └── QuantityError   a Kubernetes quantity, with the kubelet's own sentence
├── MachineError        facts about a machine contradict each other
├── SourceError         a file, directory, archive or text holds no machine that can be read
├── PodError            a pod the API server or the kubelet would refuse, field by field
├── SettingsError       an option, gate or combination the kubelet would refuse to start with
├── StateError          a stored assignment does not belong to this machine or these settings
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


class SettingsError(AlignError, ValueError):
    """An option, gate or combination the kubelet would refuse to start with; the message is the kubelet's.

    ``manager`` says which of its managers would refuse, where that is known: topology, cpu, memory.
    """

    manager: str | None = None


class StateError(AlignError, ValueError):
    """A stored assignment does not fit this machine or these settings; the message is the kubelet's."""


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
