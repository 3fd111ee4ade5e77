"""A small Kubernetes on one machine, for development and tests: `api` (the API server) and `node` (plays the kubelets).

It listens on loopback and is no isolation boundary: an account that may start a pod acts as the user that runs the
cluster.
"""
