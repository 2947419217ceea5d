"""Our JSON documents: decisions, ledgers, machines, checkpoints and the HTTP API."""
