"""Enforcing a decision: CPUs and memory of plain processes by cpuset or affinity.

``run_record`` is what a run was given; ``cgroup``, ``memory`` and ``process`` apply it; ``launcher`` runs the command;
``audit`` compares intended with actual placement. Standard library and kernel interfaces only; no shell.
"""
