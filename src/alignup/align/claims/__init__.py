"""Devices of Dynamic Resource Allocation (DRA): slices, claims, and where their devices are.

A driver publishes its devices in ResourceSlices; the scheduler allocates some of them to a ResourceClaim before it
binds the pod; the kubelet prepares them after the admission. Claims give no hints, so nothing here changes a decision
of the kubelet. ``resource_claims`` has the types, ``allocation`` says which devices a claim can get, ``alignment``
whether the CPUs and memory of a decision are on their NUMA nodes, ``ledger`` which pods of a host hold which devices.
"""
