"""What a Prometheus reads of the Manager: `meters` counts, `api` answers."""
