"""Sensors: when may a task start?"""
