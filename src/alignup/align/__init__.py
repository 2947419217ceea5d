"""The heart: how a machine, settings and a pod become a decision.

Standard library only; no files, sockets, clock, logging, threads or async.
"""
