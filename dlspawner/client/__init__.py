"""What people run on their own machines: ``dlspawner submit``, ``list``, ``show``, ``logs``, ``ssh`` and the like.

Everything here speaks the REST resources of the Manager with a token of the person, and knows nothing else of the
product: ``login`` keeps address and token, ``service`` asks, ``text`` makes tables of what is answered, ``commands``
are the commands and ``arguments`` what they take. It is the standard library, YAML and shtab only, so that a command
answers in a tenth of a second.
"""
