"""machine: the GPU and the host: what they are and what they do.

nvml: readings of the GPUs
chips: the makers' published figures
fingerprint: what a result was measured with
isolation: is another process using the GPU?
preflight: can CUDA and bitsandbytes do what the trial asks?
metrics: what a running trial shows to Prometheus
sampler: the process that writes telemetry.csv; telemetry: starts it and sums its rows up
cpuwait: how long the trial waited for a CPU
pagecache: which part of a file is cached, and dropping it
"""
