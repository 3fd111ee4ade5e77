"""The one description of every request and response of the REST API."""
