"""The colors of SVG pictures, for light and dark mode; everything they show is also written out."""

_COMMON = """\
.alignup text{font-family:ui-monospace,"DejaVu Sans Mono","Liberation Mono",Menlo,Consolas,monospace;white-space:pre}
.alignup .strong{font-weight:bold}
.alignup rect{stroke-width:1}
.alignup .lost,.alignup .unseen{stroke-dasharray:2 2}
.alignup .ill{text-decoration:line-through}"""

#: Class → fill and stroke in light mode, fill and stroke in dark mode.
_COLORS = {
    "paper": ("#ffffff", "none", "#0d1117", "none"),
    "frame": ("#f3f5f8", "#9aa4b0", "#161b22", "#57606a"),
    "node": ("#ffffff", "#6e7781", "#0d1117", "#768390"),
    "bare": ("#fbf7ef", "#a68a4a", "#1c1810", "#8a7440"),
    "core": ("none", "#b6bfc9", "none", "#444c56"),
    "plain": ("#dbe9f9", "#7fa6d3", "#1d3553", "#4a74a8"),
    "free": ("#ffffff", "#8c959f", "#0d1117", "#768390"),
    "shared": ("#e2e6eb", "#8c959f", "#2d333b", "#768390"),
    "reserved": ("#b9c1ca", "#6e7781", "#4d5560", "#909dab"),
    "lost": ("#f7d4d4", "#b35959", "#4b1f1f", "#b35959"),
    "unseen": ("none", "#8c959f", "none", "#768390"),
    "held": ("#8fb8ea", "none", "#2c5c96", "none"),
    "huge": ("#e8d9a8", "none", "#5f5222", "none"),
    "holder0": ("#a5cdfa", "#3b78bd", "#1f4f86", "#5b9be0"),
    "holder1": ("#ffd197", "#bb7a1e", "#7a4d18", "#d99a45"),
    "holder2": ("#aee4b5", "#3f9150", "#23602f", "#5db56e"),
    "holder3": ("#f7bad5", "#b8527f", "#762d52", "#d6729f"),
    "holder4": ("#d6c6f8", "#7c5cc4", "#513e8a", "#9a7fe0"),
    "holder5": ("#f1e68c", "#9a8a16", "#665c18", "#c2b23c"),
    "holder6": ("#a4e5e1", "#2f8f8b", "#1a605e", "#4fb8b3"),
    "holder7": ("#e8c4aa", "#9c6238", "#684530", "#c08a62"),
}


def css() -> str:
    """The style sheet; the reader's system or browser selects the mode."""
    light = [f".alignup .{name}{{fill:{fill};stroke:{line}}}" for name, (fill, line, _, _) in _COLORS.items()]
    dark = [f".alignup .{name}{{fill:{fill};stroke:{line}}}" for name, (_, _, fill, line) in _COLORS.items()]
    light += [".alignup text{fill:#1b1f24}", ".alignup text.dim{fill:#57606a}"]
    dark += [".alignup text{fill:#e6edf3}", ".alignup text.dim{fill:#9da7b3}"]
    return "\n".join([_COMMON, *light, "@media (prefers-color-scheme:dark){", *dark, "}"])
