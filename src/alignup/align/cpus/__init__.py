"""The CPU manager: the ledger (``ledger``), hints (``hints``), selection (``packed``, ``distributed``), ``options``."""
