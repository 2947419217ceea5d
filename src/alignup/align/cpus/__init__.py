"""The CPU manager: the ledger (``ledger``), hints (``provider``), selection (``packed``, ``distributed``)."""
