"""How hints become one set of nodes: ``merge`` has the rule, ``reach`` what can be had, ``search`` the best of it."""
