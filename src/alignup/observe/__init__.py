"""Alignup in a cluster: the node observer, which publishes what every kubelet really holds.

    sources → join → Observation → HostState and NodeResourceTopology → API server

``sources`` names what is read, ``kubelet_reader`` reads it, ``join`` makes one exact host of it, ``host_states`` and
``node_topology`` describe the host as objects, ``publisher`` writes them, and ``observer`` is the loop.
"""
