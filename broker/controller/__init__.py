"""The controller: the one broker that elects leaders, moves replicas and cleans up deleted topics.

Every broker has the complete image of the cluster, so the one that takes `/controller` can begin at once: what to do is a pure
function of the image (`decide.py`, `reassign.py`, `place.py`), and doing it is a transaction that succeeds only while the epoch
in which it was decided is current (`claim.py`, `act.py`). It sends no commands: brokers act on the states that they read."""
