"""HTTP client of a container registry.

api: the distribution API, with protected credentials and limited response sizes
referrers: documents and signatures attached to an image
"""
