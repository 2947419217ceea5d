"""Check whether a kubelet starts and behaves: its configuration on a machine, and its state files.

``managers`` finds what stops the kubelet, and what surprises its users. ``salvage`` recovers damaged state files and
``repair`` makes valid states of them. Only ``diagnosis`` and ``live_kubelet`` touch the system.
"""
