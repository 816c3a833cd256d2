"""Statistics of step times: intervals over one process, several processes, two configurations.

types: dataclasses of the results
per_process: one process's steps: median, noise, outliers, drift
pooling: differences between processes, pooled over all configurations of a run
per_config: estimates from several processes; ratios of two configurations
crossed: rates without the workers' own speeds, if each configuration ran on a few workers
energy: joules from sampled watts
student: Student's t and the F distribution
"""
