"""``alignup run`` and ``alignup audit``: single commands on aligned CPUs, memory and devices, without a runtime.

``request`` has the types of a request, its placement and the record of a run; ``registry`` keeps the records;
``claims`` shows other users what they hold; ``lifecycle`` leads one run from admission to release. The allocator is the
user's own ledger (``local_allocator``) or the agent (``agent_allocator``). ``audit`` compares what was placed with what
the kernel reports, through ``process`` and ``cgroup``.
"""
