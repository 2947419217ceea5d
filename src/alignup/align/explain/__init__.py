"""Explain a decision (``sentences``), and find what would admit a rejected pod (``remedies``)."""
