"""`inv report`, `inv compare` and `inv runs`.

verbs    signatures and help
report   from a run's folder to a page
compare  what became faster or slower between runs
runs     every run in results/, and how far it came
"""
