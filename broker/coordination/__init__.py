"""Who is alive, who leads, which topics exist. `local.py` is the single broker's own answer, kept beside its logs."""
