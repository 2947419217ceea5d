"""Making a decision true for plain processes: CPUs and memory by cpuset where that is permitted, else by affinity.

``intent`` is what a run was given, ``cgroup``, ``memory`` and ``process`` are the three ways to see to it, ``child`` is
the command itself, and ``audit`` says whether all is where it was put. Standard library and the kernel; no shell.
"""
