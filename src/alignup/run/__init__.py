"""``alignup run``: run single commands on aligned CPUs, memory and devices, without a container runtime.

``request`` has the types of a request and its result, ``registry`` records the runs, ``claims`` shows other users what
they hold, ``lifecycle`` leads one run from admission to release. The allocator is the user's own ledger
(``local_allocator``) or the agent (``agent_allocator``). ``audit`` compares everything that was placed with what the
kernel reports.
"""
