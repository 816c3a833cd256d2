"""`inv report`, `inv compare`, `inv runs` and `inv tensorboard`.

verbs        signatures and help
report       from a run's folder to a page
compare      what became faster or slower between runs
runs         every run in results/, and how far it came
tensorboard  TensorBoard on a run, also while it goes on
sofar        what a training has measured so far, brought here
"""
