"""Files in a bucket of Object Storage.

bucket: one bucket: what lies there, and files into it, each confirmed by the service
push: a folder's files below a prefix, verified; SHA256SUMS comes last
"""
