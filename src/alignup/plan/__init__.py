"""Plans that make room for a pod with the fewest moves: on one node from its files, or in a cluster."""
