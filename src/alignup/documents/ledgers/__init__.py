"""A ledger as JSON documents: one entry per pod, and the residue.

An entry changes only when its own pod does, so each pod is stored once. The *residue* is everything else the
ledger records, such as what the last pod's init containers left to reuse.
"""
