"""Memory and huge pages on NUMA nodes: what there is, who holds it, where a request could go.

``provider`` has the rules; ``ledger`` who holds what; ``hints`` the sets of nodes a request could go to; ``cover`` the
arithmetic of "the fewest nodes"; ``reserve`` what is kept back for the system.
"""
