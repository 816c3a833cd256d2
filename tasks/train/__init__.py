"""`inv train` and `inv data.check`: run a fine-tuning, and check its data first.

train        `inv data.check`; `inv train`: check everything, then start, resume or submit a training
recommended  the configuration of a benchmark or a search, for `inv train --from`
init_adapter the adapter that a training begins from, verified and sent to the workers
forecast     predict hours, dollars, memory and communication before the start
shapes       what the training costs on each shape of the price table
resume       `inv train --resume`: reattach to a training, or restart it from its last checkpoint
session      follow one training to its end: losses, restarts, fewer workers
submit_job   `inv train --job`: deploy a training as a Kubernetes Job
output       reports and forecasts for the terminal and as an HTML page
"""
