"""What survives a crash: one SQLite database in each state directory, with the ledger and the history of decisions."""
