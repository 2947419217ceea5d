"""Tests of ``align.devices``."""
