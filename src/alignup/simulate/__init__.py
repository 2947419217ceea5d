"""Simulates workloads on a machine, and compares settings.

``events`` defines workloads: pods that arrive and depart. ``trace`` reads and writes them, ``generate`` makes them up.
``simulate`` runs one on a host, ``report`` writes the result, and ``compare`` runs one under many settings. All
decisions are made by ``align.host``.
"""
