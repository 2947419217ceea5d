"""Plans that make room for a pod on one node with the fewest moves, from the files of the node."""
