"""The node observer, ``alignup observe``: publishes what the kubelet of a node really holds.

    KubeletReader → Sources → join → Observation → HostState and NodeResourceTopology → API server

``kubelet_reader`` reads the sources, ``observation`` joins them into one exact host, ``published_objects`` describes
that host as objects, ``observer`` is the loop that writes them, and ``service`` wires the program.
"""
