"""`inv bench`, `cancel`, `collect` and `monitor`: trials over the fleet.

verbs        signatures and help
bench        a suite of trials, or a run resumed or cancelled
plan         from settings to a plan: which trials, on which workers, for how long
execute      a plan over the fleet, to one end for each trial
liveview     what is shown while a fleet works
trainview    what is shown while it trains
pricing      what the settings say about cost
collect      every worker's results into the run's folder
adapter      a training's adapter and record, to where one looks for them
monitor      what every worker's GPU is doing
folders      the runs on this machine
ordered/     trainings that a Kubernetes Job runs by itself
uncollected  runs whose results are still in the pods
"""
