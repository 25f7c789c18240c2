"""Operators, each for one step: freeze, load or audit windows."""
