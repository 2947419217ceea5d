"""The page of reason codes, docs/reasons.md, from the list in the code; ``make reasons`` writes it."""

from collections.abc import Iterator
from pathlib import Path

from alignup.align.reason_codes import REASON_CODES

PAGE = Path(__file__).parents[1] / "docs" / "reasons.md"
_HEAD = """\
# Reason codes

Every rejection, refusal, warning and finding has one of these codes: in the status and the events of pods, in metrics,
in warnings of the webhook, and in the output of `alignup why`, `check` and `doctor`. A code does not change. Where the
kubelet or the API server has a reason, the code is that one. `alignup explain CODE` prints an entry.

This page is generated from `src/alignup/align/reason_codes.py` (`make reasons`).
"""


def page() -> str:
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD.rstrip()
    for reason in sorted(REASON_CODES.values(), key=lambda reason: reason.code.lower()):
        yield from ("", f"## {reason.code}", "", f"**Meaning.** {reason.meaning}")
        yield from ("", f"**Example.** {reason.example}", "", f"**Do.** {reason.remedy}")


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
