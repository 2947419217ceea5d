"""The simulator: workloads on one node or on a cluster, comparisons of settings, and sweeps.

A workload is pods that arrive and depart (``arrivals``), read from a trace (``trace``, ``openb``) or generated
(``generate``). ``node_simulation`` runs it on one host, ``compare`` on one host under many settings, and
``cluster_simulation`` on the hosts of a cluster, for which a scheduler of ``schedulers`` chooses. ``sweeps`` runs many
cluster simulations, with the engines of ``executors``. All kubelets are ``align.host.Host``, and the
strategy ``alignup`` is ``placement.cluster.Cluster``, as in ``alignup schedule``.
"""
