"""The instrument: what is measured on a host, and the records it leaves.

`python -m bench` runs anywhere and knows nothing of how it got there. `trial` and `result` use the standard
library alone, because the operator's side and the report read them without a deep-learning stack; everything that
needs torch is imported by the process that runs a trial, never here.
"""
