"""Statistics of step times: intervals over one process, several processes, two configurations.

types: dataclasses of the results
per_process: one process's steps: median and its error
pooling: differences between processes, pooled over all configurations of a run; its drift
paired_losses: held-out losses of two configurations, over pairs of trainings
per_config: estimates from several processes, without the workers' own speeds; ratios of two configurations
"""
