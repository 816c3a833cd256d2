"""Clients of a model server.

software: what a server's image can load, by the versions of its packages
client: client of OpenAI's protocol, as vLLM serves it, over HTTP
"""
