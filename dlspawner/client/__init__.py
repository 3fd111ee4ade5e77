"""The commands for users' own machines: ``dlspawner submit``, ``list``, ``show``, ``logs``, ``ssh`` and others.

The client uses only the Manager's REST API, with a token of the user: ``login`` keeps address and token, ``service``
sends requests, ``text`` formats the answers, ``commands`` are the commands and ``arguments`` their arguments.
Dependencies are the standard library, YAML and shtab only, so that a command answers in a tenth of a second.
"""
