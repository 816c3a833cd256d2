"""`inv report`, `inv compare` and `inv runs`.

report   build a run's report, print its summary
compare  compare runs, print what became faster or slower
runs     list the runs in results/ with their progress
"""
