"""`inv report`, `inv compare`, `inv runs` and `inv tensorboard`.

report       build a run's report, print its summary
compare      compare runs, print what became faster or slower
runs         list the runs in results/ with their progress
tensorboard  run TensorBoard on a run, also on a running one
"""
