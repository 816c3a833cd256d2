"""`inv bench`, `cancel`, `collect` and `monitor`: trials over the fleet.

bench              `inv bench` and `inv cancel`: start, resume or cancel a run
plan               turn settings into a plan: trials, workers, expected time
declared           fields of records from the settings that they declare, in the section train
trial_spec         the trial of a training, from settings, flags and a trial file
runner             run a plan over the fleet until every trial has ended
loss_pairs         compare held-out losses with the reference, for `inv bench --quality`
live_display       progress of a fleet on the terminal
training_progress  progress of a training on the terminal
pricing            cost settings, and the price of a worker
collect            fetch the workers' results, and a training's adapter, into the run's folder
monitor            `inv monitor`: a table of the workers' GPUs
run_store          the run folders on this machine
training_job       a training's job, on a host or in pods: read, cancelled, imported into the ledger
training_pods      the pods of a training's Kubernetes Job, and a pod that reads its volume
pending_results    runs whose results are still in the pods
"""
