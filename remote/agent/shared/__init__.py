"""Modules that more than one program uses, or a program and its client.

errors: failures by kind, and their retries
files: safe paths, durable writes, JSON files; names, partial files and digests of a transfer
model_files: which files of a model are fetched, and where a cache has them
registry_api: HTTP client of a registry: manifests, and whether a login may push
responses: bounded reading of HTTP responses
secure_dir: creates and checks folders that only this user can change
wire: lines of an answer, input of a known length, exit codes
"""
