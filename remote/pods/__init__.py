"""A pod as a host, by `kubectl exec`.

far_end: the program in the pod that runs a command and frames what it says
host: runs commands in whichever pod holds an index
listing: the pods of a fleet as the cluster shows them
wire: the near end of the talk with far_end
"""
