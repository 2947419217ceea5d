"""The scheduler extender: kube-scheduler's questions as events of the scheduling state, and its answers.

Each module is one verb of the protocol: ``filter``, ``prioritize``, ``bind`` and ``preempt``. ``wake_up`` lets
the scheduler ask again about pods that were refused.
"""
