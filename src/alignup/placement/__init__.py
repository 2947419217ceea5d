"""The core for many hosts: which of them admit a pod, how good each is, and which pods to evict.

Pure and standard library only, like ``align``, whose decisions it uses. ``cluster`` puts everything together: it
follows the hosts from their reports and the events of the API server, and predicts what each kubelet will decide.
"""
