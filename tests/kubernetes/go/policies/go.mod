module dlspawner.dev/tests/policies

go 1.25

require github.com/cloudnativelabs/kube-router/v2 v2.1.0
