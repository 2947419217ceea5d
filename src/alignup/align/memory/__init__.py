"""The memory manager: the ledger, hints (``hints``, ``cover``), allocation (``provider``), ``reserved_memory``."""
