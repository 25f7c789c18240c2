"""What becomes of a window: an attempt begins, stages, seals, commits into a sink and is audited; reloads and redrives, too."""
