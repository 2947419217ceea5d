"""``python -m alignup``: the command line."""

from alignup.cli import main

main()
