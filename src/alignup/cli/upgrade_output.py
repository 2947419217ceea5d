"""How reports on upgrades are printed: the verdict first, then everything that happens, the worst first."""

from collections.abc import Iterable, Iterator

from alignup.align.release import Release
from alignup.align.restart import UpgradeItem
from alignup.cli.layout import paragraph
from alignup.picture.text_format import Line


def upgrade_lines(items: Iterable[UpgradeItem], release: Release, *, verdict: str, heading: str) -> Iterator[Line]:
    """Yield the lines of a report; an empty *verdict* means that nothing breaks, as far as *release* is known."""
    caveat = f" ({release.caveat})" if release.caveat else ""
    nothing = "nothing known breaks" if caveat else "nothing breaks"
    yield from paragraph(f"{verdict or nothing}{caveat}", style="fail" if verdict else "title")
    yield from paragraph(heading)
    for item in sorted(items, key=lambda item: item.severity):
        advice = f" → {item.advice}" if item.advice else ""
        yield from paragraph(f"{item.text}{advice}", prefix="  - ")
