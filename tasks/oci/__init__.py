"""Oracle Cloud: `inv tenancy` and its subcommands, uploads to Object Storage, and kubectl's credential plugin.

access: credentials, the SDK's clients, and translation of their errors
storage: uploads to a bucket of Object Storage
commands: signatures and help of `inv tenancy` and its subcommands
show: `inv tenancy`: read everything in parallel, and print it
discovery: parse a tenancy's resources from API responses, and derive settings from them
repository: `inv tenancy.repository`
kubeconfig: `inv tenancy.kubeconfig`, and the merge of two kubeconfigs
prices: `inv tenancy.prices`: copy Oracle's public list prices to your own table
nodes: `inv tenancy.nodes`: list node pools, resize one
node_readiness: readiness of a pool's nodes in the cluster, and results that would be lost with them
user_config: write settings to ~/.invoke.yaml, preserving everything else
private_files: atomic writes of files that only their owner may read

kubectl runs `python -m tasks.oci token` for a token.
"""
