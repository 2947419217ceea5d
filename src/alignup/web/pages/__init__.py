"""Web pages: server-rendered HTML and SVG, one style sheet, one script, and nothing from other servers."""
