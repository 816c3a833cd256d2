"""Facts about the GPU and the host, checks before a trial, and measurements during it.

cpu_contention: time that the trial waited for a CPU
fingerprint: facts of the machine and the software behind a result
gpu_health: ECC errors, remapped rows, XID events and the PCIe link; faults
gpu_specs: published figures of GPUs
nvml: readings of the GPUs
preflight: checks before a trial: a GPU, other processes on it, CUDA, bitsandbytes and Triton
sampler: process that writes telemetry.csv
telemetry: start of the sampler, and the summary of its rows
"""
