"""Kubernetes: read, render, plan, change.

kubeconfig: which cluster is meant; client: reads it and changes it; kubectl: its command line and its errors
manifests: values in, objects out; plan: what to do about them (pure); pullsecret: the registry's login
reader: a pod without a GPU that sees a training's volumes
kinds, labels, errors: the words of all of these; quantity, yamltext: "500m" as a number, objects as YAML
diagnosis: why nodes, pods, Jobs and claims are not as they should be (pure)
"""
