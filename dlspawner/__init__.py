"""JupyterHub for deep-learning clusters on Kubernetes."""
