"""Kubernetes: read the cluster, render manifests, plan and apply changes.

namespace_client: reads and changes one namespace of a cluster
api_connection: makes the API client of a target
credential_cache: runs the kubeconfig's credential program, and keeps its answer while it is valid
diagnosis: causes and remedies of nodes, pods, Jobs and claims that are not ready (pure)
kubeconfig: resolves context and namespace
labels: labels and names of the fleet's objects
manifests: renders the manifests by Kustomize, makes Secrets and the Job that reads a training's volumes
plan: computes the actions that bring the cluster to the manifests (pure)
quantities: parses Kubernetes quantities such as "500m"
settings: the settings of the cluster and its volume
"""
