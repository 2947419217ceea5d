"""Merging of hints: ``merge`` has the rule, ``reachability`` the possible sets, ``search`` the best of them."""
