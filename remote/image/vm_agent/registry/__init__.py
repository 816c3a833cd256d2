"""A registry, asked from the build VM. Standard library alone, Python 3.9 or newer.

api: the distribution API, careful with the login and with the answers
ask: one question about a registry, and one JSON line that answers it
beside: documents and signatures that belong to an image
"""
