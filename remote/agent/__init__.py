"""Programs that run on other machines. Standard library only, Python 3.9 or newer, Linux.

They reach a host only through `remote.hosts.bundle`. The operator's side imports `shared` and nothing else of this
package.

build_vm: long work on the build VM, each verb a detached job
jobs: detached jobs and verified file transfers
pods: programs of one file for pods, each sent as the text of one command
scripts: programs of one file, each sent as the text of one command
shared: modules of more than one program, or of a program and its client
"""
