"""The memory manager: the ledger (``ledger``), hints (``hints``, ``cover``), allocation (``provider``), reservations.

``reserved_memory`` parses and proposes the memory reserved for the system.
"""
