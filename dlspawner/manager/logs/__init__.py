"""What jobs print, and what becomes of them: read from Kubernetes while a job runs, kept when it has ended.

`redaction` and `sources` are pure; `collector` reads and keeps; `http.api.logs` and `http.portal.logs` show it to the
owner of a job and the admins of its team.
"""
