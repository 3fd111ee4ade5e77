"""What was: GPU-hours of jobs by day, their use over time, and how long all of that is kept.

`gpu_hours` is what the leader does once a minute, `db.gpu_hours` its part of the database, `http.api.history` and
`http.portal.history` show it. The rules are in `core.accounting`.
"""
