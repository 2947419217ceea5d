"""Single commands on CPUs, memory and devices that belong together, without a container runtime: ``alignup run``.

``wish`` has the words for what is asked for and given, ``registry`` knows who runs, ``running`` leads one run from its
admission to its end. Who decides is an office: the user's own ledger, which is ``ledger``, or an agent.
"""
