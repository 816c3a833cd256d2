"""Why a pod does not come up: pure functions on the API's JSON.

nodes: which nodes qualify; driver: the drivers that an image starts on
readiness: the pods that a Job promises; finding: one thing that is wrong
pods: pods, Jobs and claims; imagepull: a pull that fails; scheduling: the scheduler's message
"""
