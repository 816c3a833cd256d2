"""`inv train` and `inv data.check`: a fine-tuning, and what it trains on before it costs anything.

verbs     the signatures and help of the tasks
check     inv data.check: settings to a question, one worker's answer
train     inv train: what is checked before anything begins, a new training, a resumed one
planned   from settings, flags and a trial file to the trial that a training is
foreseen  hours, dollars, memory and communication, before it starts
changes   what is set otherwise than when a training was planned, refused or taken over
going     a training until its end: losses, restarts, fewer workers
order     inv train --job: a training that Kubernetes runs by itself
printed   the answers for a terminal and as a page
"""
