"""Kubernetes: read the cluster, render manifests, plan and apply changes.

client: reads and changes one namespace of a cluster
credentials: timeout for the kubeconfig's credential programs
diagnosis: causes and remedies of nodes, pods, Jobs and claims that are not ready (pure)
kubeconfig: resolves context and namespace, makes the API client
labels: labels and names of the fleet's objects
manifests: renders the manifests by Kustomize
plan: computes the actions that bring the cluster to the manifests (pure)
pull_secret: makes the registry's and the server's Secret
quantities: parses Kubernetes quantities such as "500m"
resource_kinds: API paths of the kinds in use
volume_reader_pod: makes a pod without a GPU that mounts a training's volumes
"""
