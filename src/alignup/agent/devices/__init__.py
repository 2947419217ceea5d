"""Device plugins in the agent: which devices exist, which pods hold them, and the calls an admission needs."""
