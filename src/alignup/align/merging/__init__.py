"""The merge of hints: ``merge`` has the policies and the rule, ``reachability`` and ``search`` the possible sets."""
