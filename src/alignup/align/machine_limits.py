"""The largest machine that is read, whatever its source.

The limits are above every machine that exists. They bound the memory that a short description can take: a set takes as
many bits as its largest member, and distances take the square of the number of NUMA nodes.
"""

MAX_CPUS = 1 << 16  #: eight times what Linux supports
MAX_CPU_ID = 1 << 16  #: exclusive
MAX_NODES = 1 << 10  #: what Linux supports
MAX_NODE_ID = 1 << 12  #: exclusive
MAX_DEVICES = 100_000
MAX_PCI_DEVICES = 1 << 14
MAX_NUMBER = 1 << 63  #: exclusive: bytes of memory, counts, and the numbers of cores, sockets and caches
