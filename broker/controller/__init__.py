"""The controller: the one broker that elects leaders, moves replicas and clears away what was deleted.

Every broker has the whole image of the cluster, so whoever holds `/controller` can begin at once: what to do is a pure function
of the image (`decide.py`, `reassign.py`, `place.py`), and doing it is a transaction that holds only while the epoch in which it
was decided is the current one (`claim.py`, `act.py`). Nobody is told anything: brokers act on the states that they read."""
