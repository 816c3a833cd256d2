"""Your Oracle Cloud tenancy: what is there, a repository, a kubeconfig, list prices, the nodes of a pool.

access: credentials, the SDK's clients, and what their errors mean
storage: files into a bucket of Object Storage
verbs: `inv tenancy` and its verbs: signatures and help
show: `inv tenancy`: asks for everything side by side, and prints it
survey: what a tenancy has, read from the API's answers, and the settings that follow from it
repository: `inv tenancy.repository`
kubeconfig: `inv tenancy.kubeconfig`, and the merge of two kubeconfigs
prices: `inv tenancy.prices`: Oracle's public price list into your own table
nodes: `inv tenancy.nodes`: a node pool grows or shrinks
ready: which nodes of a pool the cluster has ready, and whether results would go with them
userfile: settings into ~/.invoke.yaml, everything else in it as it was
privately: files that nobody else may read

`python -m tasks.oci token` is what kubectl runs for a token.
"""
