"""Aggregates: tables computed from a pipeline's rows by the hours of their own times, exact after each load and each reload."""
