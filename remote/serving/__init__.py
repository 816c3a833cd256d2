"""Clients of a model server.

client: client of OpenAI's protocol, as vLLM serves it, over HTTP
pod_transport: sends the requests from inside the server's pod, so that the key stays in the cluster
"""
