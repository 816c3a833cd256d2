"""Hosts and trials: a queue, a ledger, exactly one end for each trial.

fleet: runs the open trials of a ledger over hosts; worker: one host's thread
queue: which trial a host may have next; gang: several hosts that run one trial
keeper: a training's checkpoints come home, and what each of its restarts cost
attempt: what an attempt left, brought here; patience: how long a host is asked again
verdict: from what a job left to the trial's end (pure); settle: writes that end; ledger: the file it is written to
events: what a fleet reports to a view; shared_volume: results that outlive their worker
"""
