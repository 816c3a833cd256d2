"""`inv train` and `inv data.check`: run a fine-tuning, and check its data first.

train        `inv data.check`; `inv train`: its request, the facts, the plan, and the act
recommended  the configuration of a benchmark, for `inv train --from`
init_adapter the adapter that a training begins from, verified and sent to the workers
forecast     predict hours, dollars and memory before the start
shapes       what the training costs on each shape of the price table
submit       start a training without an operator: as a Kubernetes Job, or as a job on one host
follow       follow a training to its end, and collect it
resume       `inv train --resume`: follow a training again, or submit its next turn from the last checkpoint
data_warnings  what a training shows or learns little of, by code, before it begins
output       reports and forecasts for the terminal and as an HTML page
"""
