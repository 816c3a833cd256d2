"""Hosts and trials: a queue, a ledger, exactly one end for each trial.

fleet: runs the open trials of a ledger over hosts
gang_agent: several hosts that run one trial together
ledger: the append-only log of a run
outcome: fetches what an attempt left, judges it, and writes the trial's outcome
queue: chooses the next trial of each host
retry_policy: how long a fleet retries a host that does not answer or is busy
worker: one host's thread
"""
