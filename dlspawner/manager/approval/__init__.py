"""Approvals: what waits for somebody's word, who may give it, and what becomes of it.

`requests` is what is asked for, as it is written down; `deciding` are the turns that ask, approve and deny; `words`
says who may decide, and tells it; `api` and `page` are for programs and people. What needs a word is `core.approval`'s.
"""
