"""Explanations: a decision in ``sentences``, and ``remedies`` that would admit a rejected pod."""
