"""CPUs that containers own: which ones, who holds them, on which NUMA nodes more could be had.

``provider`` has the rules; ``ledger`` who holds what; ``hints`` the sets of nodes a request could go to; ``order`` and
``distribute`` which CPUs are taken; ``options`` what the node's configuration says.
"""
