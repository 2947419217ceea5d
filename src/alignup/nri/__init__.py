"""``alignup nri``: CPUs and memory of containers beside a kubelet, through the container runtime's NRI.

``frames``, ``ttrpc`` and ``nri_plugin`` are a library for NRI plugins in Python, and need nothing else of Alignup but
the generated messages.
"""
