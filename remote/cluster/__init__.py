"""Kubernetes: read, render, plan, change.

kubeconfig: which cluster is meant; credentials: a limit for the programs that it names
client: reads it and changes it; kubectl: its command line, its YAML and its errors
manifests: values in, objects out; plan: what to do about them (pure); pullsecret: the registry's login
reader: a pod without a GPU that sees a training's volumes
kinds, labels, errors: the words of all of these; quantity: "500m" as a number
diagnosis: why nodes, pods, Jobs and claims are not as they should be (pure)
"""
