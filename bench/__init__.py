"""bench: the program that runs on a host. It measures one trial per process and writes one result.

records: trials, results and file names; only the standard library, shared with the operator's side and the reports
commands: `python -m bench COMMAND`
harness: a trial's process: its record, termination and progress
workloads: one module for each kind of trial
data: model folder and data file to batches
machine: the GPU and the host
qlora: the training step and its recipes
kernels: Triton and CUDA kernels of the recipes
train: training data of a fine-tuning
adapter: checks, merges and serves a trained adapter
predict: arithmetic estimates of FLOP and memory
torch_stack: torch and its libraries, imported once by the process that runs a trial
"""
