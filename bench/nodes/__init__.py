"""Node pools that the first pod of a training's Job shrinks after its success (`train.then: shrink` with `--job`).

pool: a pool of nodes, the rule under which it may shrink, and the modules of providers
oke: pools of OKE by Oracle's SDK, as the instance or the workload that the pod is; the only place of the SDK in bench
"""
