"""The figures of an earlier version, and which figures of this run are worse.

Times of two machines, or of one machine on two days, are not comparable. So each benchmark also measures
``harness.reference``, and the *ratio* of a figure to it is compared.
"""

import json
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import alignup
from bench.harness import Figure

#: The recorded figures of the last release: CPU time only, since times that include a disk differ too much.
DEFAULT = Path(__file__).with_name("baseline.json")
TOLERANCE = 0.10  #: a ratio that grows by more than this is marked


@dataclass
class Baseline:
    """Figures by benchmark and name."""

    release: str = alignup.__version__
    python: str = platform.python_version()
    figures: dict[str, dict[str, float]] = field(default_factory=dict)  #: name → value and ratio

    @classmethod
    def read(cls, path: Path) -> "Baseline":
        document: dict[str, Any] = json.loads(path.read_text())
        return cls(document["release"], document["python"], document["figures"])

    def write(self, path: Path) -> None:
        document = {"release": self.release, "python": self.python, "figures": self.figures}
        path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")

    def add(self, name: str, figure: Figure, *, reference: float) -> None:
        ratio = figure_ratio(figure, reference)
        self.figures[name] = {"value": float(f"{figure.value:.4g}"), "ratio": float(f"{ratio:.4g}")}

    def growth(self, name: str, figure: Figure, *, reference: float) -> float | None:
        """Return how much larger the ratio is than the recorded one: 0.1 is 10 %; ``None`` if none is recorded."""
        known = self.figures.get(name)
        return None if known is None else figure_ratio(figure, reference) / known["ratio"] - 1


def figure_ratio(figure: Figure, reference: float) -> float:
    """Return a figure that hardly depends on the machine: a time relative to the reference, or the value itself."""
    return figure.value / reference if figure.unit == "s" else figure.value
