"""What was: GPU-hours of jobs by day, their use over time, and how long all of that is kept.

`hoursrows` has the database's part, `keeping` what the acting Manager does once a minute, `api` and `page` what people
ask. What counts as what is `core.gpu_hours`' to say.
"""
