"""What jobs print, and what becomes of them: read from Kubernetes while a job runs, kept when it has ended.

`text` and `sources` are pure; `keeper` reads and keeps, `rows` is its part of the database, `log_api` and `log_page`
show it to a job's owner and the admins of its team.
"""
