"""Triggers: what waits in the triggerer for a deferred task, or for a DAG that an event starts."""
