"""Hosts and trials: a queue, a ledger, exactly one end for each trial.

checkpoint_sync: downloads a training's checkpoints and records the cost of each restart
events: events that a fleet sends to a display
fetch_result: downloads the result of an attempt
fleet: runs the open trials of a ledger over hosts
gang_agent: several hosts that run one trial together
ledger: the append-only log of a run
outcome: computes a trial's outcome from what its job left (pure)
outcome_writer: writes that outcome to the result folder and the ledger
queue: chooses the next trial of each host
retry_policy: how long a fleet retries a host that does not answer or is busy
shared_volume: output on a volume that outlives its worker
worker: one host's thread
"""
