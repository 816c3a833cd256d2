"""Facts about the GPU and the host, checks before a trial, and measurements during it.

fingerprint: facts of the machine and the software behind a result
gpu_health: faults of GPUs: ECC errors, remapped rows, XID events
gpu_specs: published figures of GPUs
nvml: readings of the GPUs
preflight: checks before a trial: a GPU, other processes on it, CUDA, bitsandbytes and Triton
sampler: process that writes telemetry.csv
telemetry: start of the sampler, and the summary of its rows
"""
