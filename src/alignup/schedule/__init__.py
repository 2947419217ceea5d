"""The cluster service: which nodes will admit a pod, answered for schedulers while the cluster changes.

``live_cluster`` follows the API server and keeps a ``placement.cluster.Cluster`` up to date; everything else asks it.
"""
