"""A decision in words (``story``, ``parts``), and what would have admitted a refused pod (``remedies``)."""
