"""The agent: pods are admitted on this host one at a time, and every decision is on disk before it is answered."""
