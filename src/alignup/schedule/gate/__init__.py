"""The gate controller: chooses nodes for pods behind a scheduling gate, for clusters whose scheduler is not ours.

A webhook adds the gate to pods that opt in (``admission``; its certificate: ``certificates``). The controller chooses a
node whose kubelet will admit the pod, and releases the pod with a node affinity (``controller``). docs/gate.md
"""
