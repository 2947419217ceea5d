"""The device manager: the ledger (``ledger``), hints (``hints``, ``cover``) and allocation (``provider``)."""
