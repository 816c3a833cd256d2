"""Diagnosis of pods that do not start: pure functions on the API's JSON.

driver: NVIDIA driver versions that an image supports
finding: one problem with its cause and remedy
image_pull: failed image pulls
nodes: nodes that qualify for our pods
pods: pods, Jobs and claims
readiness: state of each pod of a Job
scheduling: the scheduler's messages
"""
