"""One file per API family: a request in, a response out. Errors become wire codes in `error_codes.py`, nowhere else."""
