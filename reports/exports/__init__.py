"""A run in the files of other tools: TensorBoard, MLflow, Weights & Biases, optimum-benchmark, MLPerf.

logged: a run's trials, or its training, as these tools keep one: settings, curves, final values
write: the formats by name; `export` is the way in
tensorboard: event files, which grow while the run does
mlflow: a file store
mlperf: `:::MLLOG` lines
optimum: optimum-benchmark's benchmark.json
offline_wandb: offline runs, which `wandb sync` sends
"""
