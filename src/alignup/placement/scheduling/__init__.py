"""Scheduling: everything that concerns more than one pod of a cluster, decided once, as a pure state machine."""
