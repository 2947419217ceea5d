"""Simulates the hosts of a whole cluster, with a scheduler that chooses one for each pod.

``groups`` defines the hosts and ``submissions`` the pods; ``openb`` reads both from a public trace, ``generate`` makes
pods up. A scheduler of ``strategies`` chooses the hosts, and ``simulation`` lets their kubelets decide. The result is a
``simulate.cluster.result_documents.FleetResult``. All kubelets are ``align.host.Host``s, and the strategy ``alignup`` is
``placement.Cluster``, as in the live service.
"""
