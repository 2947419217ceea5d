"""Benchmarks, each figure printed beside its budget: ``make bench``."""
