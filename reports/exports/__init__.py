"""Export of a run to TensorBoard, MLflow, Weights & Biases, optimum-benchmark and MLPerf.

log_model: a run's trials or training in the common model of these tools: settings, curves, final values
write: the formats by name, and `export`, the entry point
tensorboard: event files, appended to while the run continues
mlflow: a file store
mlperf: `:::MLLOG` lines
optimum: optimum-benchmark's benchmark.json
offline_wandb: offline runs for `wandb sync`
"""
