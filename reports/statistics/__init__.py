"""From steps to intervals: over one process, several processes, two configurations.

values: what the statistics say
processes: one process's steps: median, noise, outliers, drift
pooling: how much processes differ, from all configurations of a run
configurations: several processes to an estimate; two configurations to a ratio
energy: joules from sampled watts
student: Student's t distribution
"""
