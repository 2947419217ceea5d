"""Pictures of machines and of what pods hold on them, for the terminal and as SVG.

Pure: no files, no terminal, and names of styles instead of colors. The command line, the documentation and the web
pages share this code.
"""
