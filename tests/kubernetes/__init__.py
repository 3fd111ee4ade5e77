"""A real Kubernetes on one machine, and the tests that need one (README.md)."""
