"""bench: what runs on a host. It measures one trial per process and writes one result.

records: trials, results and file names; standard library alone, shared with the operator's side and the report
commands: `python -m bench COMMAND`
harness: one trial process: its record, its ends, its progress
kinds: one module for each kind of trial
data: from a model folder and a data file to batches
machine: the GPU and the host
qlora: the training step and its recipes; kernels: their Triton kernels
train: what a fine-tuning trains on
predict: FLOP and memory, by arithmetic
stack: torch and its libraries, imported once by the process that runs a trial
"""
