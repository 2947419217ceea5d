"""The check of a kubelet: whether it starts and behaves, with its configuration on a machine and its state files.

``manager_checks`` finds what stops the kubelet, and what surprises its users. ``salvage`` recovers damaged state files
and ``state_check`` makes valid states of them. Only ``diagnosis`` touches the system.
"""
