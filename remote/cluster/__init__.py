"""Kubernetes: read, render, plan, change."""
