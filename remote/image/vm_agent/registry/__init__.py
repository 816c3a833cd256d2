"""HTTP client of a container registry on the build VM. Standard library only, Python 3.9 or newer.

api: the distribution API, with protected credentials and limited response sizes
main: one request about a registry, answered with one JSON line
referrers: documents and signatures attached to an image
"""
