"""The colours of SVG pictures, for light paper and for dark; what they mean is always said in words too."""

_COMMON = """\
.alignup text{font-family:ui-monospace,"DejaVu Sans Mono","Liberation Mono",Menlo,Consolas,monospace;white-space:pre}
.alignup .strong{font-weight:bold}
.alignup rect{stroke-width:1}
.alignup .lost,.alignup .unseen{stroke-dasharray:2 2}
.alignup .ill{text-decoration:line-through}"""

#: Class → fill and stroke, on light paper and on dark.
_COLOURS = {
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
    "tenant0": ("#a5cdfa", "#3b78bd", "#1f4f86", "#5b9be0"),
    "tenant1": ("#ffd197", "#bb7a1e", "#7a4d18", "#d99a45"),
    "tenant2": ("#aee4b5", "#3f9150", "#23602f", "#5db56e"),
    "tenant3": ("#f7bad5", "#b8527f", "#762d52", "#d6729f"),
    "tenant4": ("#d6c6f8", "#7c5cc4", "#513e8a", "#9a7fe0"),
    "tenant5": ("#f1e68c", "#9a8a16", "#665c18", "#c2b23c"),
    "tenant6": ("#a4e5e1", "#2f8f8b", "#1a605e", "#4fb8b3"),
    "tenant7": ("#e8c4aa", "#9c6238", "#684530", "#c08a62"),
}


def css() -> str:
    """The style sheet; dark paper is the reader's choice, made in the system or the browser."""
    light = [f".alignup .{name}{{fill:{fill};stroke:{line}}}" for name, (fill, line, _, _) in _COLOURS.items()]
    dark = [f".alignup .{name}{{fill:{fill};stroke:{line}}}" for name, (_, _, fill, line) in _COLOURS.items()]
    light += [".alignup text{fill:#1b1f24}", ".alignup text.dim{fill:#57606a}"]
    dark += [".alignup text{fill:#e6edf3}", ".alignup text.dim{fill:#9da7b3}"]
    return "\n".join([_COMMON, *light, "@media (prefers-color-scheme:dark){", *dark, "}"])
