"""Alignup: which NUMA nodes, CPUs, memory and devices each container gets, and why.

The library on one screen; everything here needs the standard library only.
"""

__version__ = "0.1.0.dev0"
