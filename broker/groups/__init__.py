"""Consumer groups: who is a member and in which generation, and the offsets that members have committed.

The membership is a machine without I/O: requests and the time go in, answers and the next deadline come out. `coordinator.py`
holds all groups, `group.py` is one of them, `members.py` its members; `offset_store.py` keeps the commits.
"""
