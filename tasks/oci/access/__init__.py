"""Credentials and API access to Oracle Cloud; except for the public price list, all its requests go through here.

profile: read and validate a profile of the OCI CLI's configuration; no SDK
signing: private keys, and a cluster's token, which is a signed URL; no SDK
clients: the SDK's clients with deadlines, retries and pagination; region, compartment, namespace
instance: the SDK's signer for an instance of the tenancy, such as the build VM
errors: translate API errors into a task's errors, with the missing policy
optional_sdk: one-line error if the SDK is not installed
"""
