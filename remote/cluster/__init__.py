"""Kubernetes: read the cluster, render manifests, plan and apply changes.

client: reads and changes one namespace of a cluster
credential_cache: keeps the credentials of kubectl's commands while they are valid
diagnosis: causes and remedies of nodes, pods, Jobs and claims that are not ready (pure)
kubeconfig: resolves context and namespace, makes the API client, limits credential programs
labels: labels and names of the fleet's objects
manifests: renders the manifests by Kustomize, makes Secrets and the Job that reads a training's volumes
plan: computes the actions that bring the cluster to the manifests (pure)
quantities: parses Kubernetes quantities such as "500m"
settings: the settings of the cluster and its volume
"""
