"""Our JSON documents: decisions, ledgers, machines and the HTTP API."""
