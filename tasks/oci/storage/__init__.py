"""Uploads to a bucket of Object Storage.

bucket: list a bucket, upload files with checksums confirmed by the service
push: upload a folder's files below a prefix, verified; SHA256SUMS is sent last
"""
