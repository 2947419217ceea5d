"""The terminal recording of the README: ``make recording``.

The commands run on a terminal; their output, with its colors, becomes an SVG that scrolls by itself. Only style sheets
move it: it needs no script and nothing from other sites, and it stands still where motion is not wanted.
"""

import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path

from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "docs" / "pictures" / "recording.svg"
WIDTH, HEIGHT = 80, 30  #: of the terminal, in characters

#: The lines of each command as they are shown; the last one ends on the remedies.
COMMANDS = (
    (
        "alignup simulate --generate training --count 100 --compare policy --jobs 1 \\",
        "    --machine examples/node/machine.yaml --config examples/node/kubelet.yaml",
    ),
    (
        "alignup why -f examples/node/trainer.yaml \\",
        "    --machine examples/node/machine.yaml --config examples/node/kubelet.yaml \\",
        "    --kubelet-dir examples/node/state --pods examples/node/running.yaml",
    ),
)

_CELL, _LINE, _MARGIN, _BAR = 8.4, 18, 12, 28  # pixels
_STEP, _THINK, _READ = 0.25, 1.5, 6.0  # seconds: for a line, before a command starts, after its last line
_BACKGROUND, _FOREGROUND, _PROMPT = "#1b1d23", "#d8dae0", "#8fd17e"
_THEME = TerminalTheme(
    (27, 29, 35),
    (216, 218, 224),
    [
        *((27, 29, 35), (242, 119, 122), (143, 209, 126), (240, 198, 116)),
        *((110, 170, 240), (205, 150, 220), (100, 205, 205), (216, 218, 224)),
    ],
)


def main() -> int:
    OUTPUT.write_text(render(), "utf-8")
    print(f"{OUTPUT}  {OUTPUT.stat().st_size / 1e3:.0f} kB")
    return 0


def render() -> str:
    """Run the commands, and return the recording."""
    lines: list[Text] = []
    shown: list[tuple[float, int]] = []  # time, number of lines that are visible
    time = 0.0
    for command in COMMANDS:
        lines += [Text.assemble(("$ " if not index else "", _PROMPT), line) for index, line in enumerate(command)]
        shown.append((time, len(lines)))
        time += _THINK
        for line in _output(command):
            lines.append(line)
            shown.append((time, len(lines)))
            time += _STEP
        lines.append(Text())
        time += _READ
    return "\n".join(_svg(lines, shown, time)) + "\n"


def _output(command: Sequence[str]) -> list[Text]:
    """Return the lines that a command prints on a terminal."""
    words = "".join(line.rstrip("\\") for line in command).split()
    ours, theirs = pty.openpty()
    environment = {
        **{name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "ALIGNUP_DEBUG"}},
        "COLUMNS": str(WIDTH),
        "TERM": "xterm-256color",
        "PYTHONUTF8": "1",
    }
    with os.fdopen(ours, "rb", buffering=0) as reader:
        process = subprocess.Popen(
            [sys.executable, "-m", *words], cwd=ROOT, env=environment, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        text = b"".join(_chunks(reader.fileno())).decode().replace("\r\n", "\n")
        process.wait()
    return [Text.from_ansi(line) for line in text.rstrip("\n").split("\n")]


def _chunks(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(descriptor, 1 << 16)
        except OSError:  # the terminal is closed
            return
        if not chunk:
            return
        yield chunk


def _svg(lines: Sequence[Text], shown: Sequence[tuple[float, int]], seconds: float) -> Iterator[str]:
    width, height = round(WIDTH * _CELL + 2 * _MARGIN), _BAR + HEIGHT * _LINE + _MARGIN
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-labelledby="title">'
    yield f'<title id="title">{escape(" and ".join(" ".join(command[0].split()[:2]) for command in COMMANDS))}</title>'
    yield "<style>"
    yield "text{font:14px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}"
    yield f"text{{fill:{_FOREGROUND}}}"
    yield ".b{font-weight:bold}.d{opacity:.65}"
    yield f"@media(prefers-reduced-motion:no-preference){{.s{{animation:s {seconds:.1f}s step-end infinite}}"
    yield f".c{{animation:c {seconds:.1f}s step-end infinite}}}}"
    yield f"@keyframes s{{{_frames(shown, seconds, lambda count: -_LINE * max(count - HEIGHT, 0))}}}"
    yield f"@keyframes c{{{_frames(shown, seconds, lambda count: _LINE * min(count, HEIGHT))}}}"
    yield "</style>"
    yield f'<rect width="{width}" height="{height}" rx="8" fill="{_BACKGROUND}"/>'
    for index, color in enumerate(("#ff5f57", "#febc2e", "#28c840")):
        yield f'<circle cx="{16 + 18 * index}" cy="14" r="5" fill="{color}"/>'
    yield f'<clipPath id="v"><rect y="{_BAR}" width="{width}" height="{HEIGHT * _LINE}"/></clipPath>'
    yield '<g clip-path="url(#v)"><g class="s">'
    for number, line in enumerate(lines):
        if line.plain.strip():
            yield f'<text x="{_MARGIN}" y="{_BAR + _LINE * (number + 1) - 5}">{"".join(_spans(line))}</text>'
    cover = f'<rect class="c" y="{_BAR}" width="{width}" height="{HEIGHT * _LINE}" fill="{_BACKGROUND}"'
    yield f'</g>{cover} transform="translate(0 {HEIGHT * _LINE})"/></g></svg>'


def _frames(shown: Sequence[tuple[float, int]], seconds: float, place: Callable[[int], int]) -> str:
    """Return the key frames of an element that is at *place* of the number of visible lines."""
    frames, last = [], None
    for time, count in shown:
        if (position := place(count)) != last:
            frames.append(f"{100 * time / seconds:.2f}%{{transform:translateY({position}px)}}")
        last = position
    return "".join(frames)


def _spans(line: Text) -> Iterator[str]:
    """Return the parts of *line*; each begins at its column, since fonts differ in their widths."""
    edges = sorted({0, len(line), *(edge for span in line.spans for edge in (span.start, span.end))})
    for start, end in pairwise(edges):
        part = line.plain[start:end]
        if not part.strip():
            continue
        styles = (span.style for span in line.spans if span.start <= start < span.end)
        parsed = (Style.parse(style) if isinstance(style, str) else style for style in styles)
        style = Style.combine((Style.null(), *parsed))
        attributes = f' x="{_MARGIN + start * _CELL:.1f}" textLength="{(end - start) * _CELL:.1f}"'
        if style.color:
            attributes += f' fill="{style.color.get_truecolor(_THEME).hex}"'
        if names := "b" * bool(style.bold) + "d" * bool(style.dim):
            attributes += f' class="{" ".join(names)}"'
        yield f"<tspan{attributes}>{escape(part)}</tspan>"


if __name__ == "__main__":
    sys.exit(main())
