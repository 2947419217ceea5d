"""Scheduling: what concerns more than one pod of a cluster, decided once, as a pure state machine.

Begin with ``scheduling_state``: it takes ``events``, returns ``instructions``, and knows ``facts`` only. Below it are

* ``assumptions``: the pods that nodes count on although their bindings were not observed yet;
* ``kept_nodes``: nodes for pods that have waited long, behind the gate or for a scheduler;
* ``gate``, with ``pod_queue``, ``gang_placement`` and ``releases``: pods behind the gate, from creation to binding;
* ``tentative_gangs``: gangs of schedulers that ask;
* ``claim_rules``: pods with ResourceClaims;
* ``node_offers``, ``bindings``, ``preemption`` and ``wake_ups``: the answers to schedulers that ask;
* ``pod_steering``: pods that go to one NUMA node of their node;
* ``active_plan``: the evictions and admissions of a Plan object.

``docs/scheduling-states.md`` has the states of a gated pod.
"""
