"""The core: decide on a pod from a machine, settings and a ledger.

Pure and standard library only. Start with ``admit``; ``host`` puts everything together.
"""
