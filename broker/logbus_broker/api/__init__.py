"""One file per API family: a request in, a response out. An error becomes a wire code by the table in `error_codes.py`; a code
that is not an error's (a session that does not exist, a version without a feature) is written where it is decided.
"""
