"""Hosts and trials: a ledger, exactly one end for each trial.

events: what a fleet sends to a display
fleet: runs the open trials of a ledger over hosts
gang_agent: several hosts that run one trial together
ledger: the append-only log of a run
outcome: fetches what an attempt left, and judges it
retry_policy: how long a fleet retries a host that does not answer or is busy
worker: one host's thread, which runs its trials and writes their ends
"""
