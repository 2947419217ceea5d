"""What a test needs that not every machine has."""

import pytest


def needs(missing: str | None) -> pytest.MarkDecorator:
    """Skip tests if something is *missing*, which says what, and how to get it."""
    return pytest.mark.skipif(missing is not None, reason=missing or "")
