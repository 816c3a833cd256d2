"""Diagnosis of pods that do not start: pure functions on the API's JSON.

finding: one problem with its cause and remedy
image_pull: failed image pulls
nodes: nodes that qualify for our pods, with a driver that the image supports
pods: pods, Jobs and claims, and the scheduler's messages
readiness: state of each pod of a Job
"""
