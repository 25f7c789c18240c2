"""Sensors, and the triggers that wait in their place: when may a task start, or a DAG?"""
