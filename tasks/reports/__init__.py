"""`inv report` and `inv compare`.

verbs    signatures and help
report   from a run's folder to a page
compare  what became faster or slower between runs
"""
