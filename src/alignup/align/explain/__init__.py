"""Explain a decision (``sentences``, ``decision_parts``), and find what would admit a rejected pod (``remedies``)."""
