"""Consumer groups: their members and generations, and the offsets that members have committed.

The membership is a state machine without I/O: requests and the time go in, answers and the next deadline come out.
`coordinator.py` holds all groups, `group.py` is one group, `members.py` its members; `committed_offsets.py` keeps committed
offsets.
"""
