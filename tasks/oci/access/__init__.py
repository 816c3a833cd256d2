"""Who asks the tenancy, and how: nothing else in the project talks to Oracle Cloud.

profile: a profile of the OCI CLI's configuration, checked; no SDK
signing: private keys, and a cluster's token, which is a signed URL; no SDK
clients: the SDK's clients with deadlines and retries, the region, the compartment; pages
instance: the SDK's signer for an instance of the tenancy, such as the build VM
failures: an error of the API as a task's: what, where, what to type next; the policy that is missing
needed: without the SDK one line says how to get it
"""
