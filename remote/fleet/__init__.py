"""Hosts and trials: a queue, a ledger, exactly one end for each trial."""
