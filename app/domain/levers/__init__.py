"""Techniques as functions: from a scenario to a new one, with what each step saved in time, bytes and FLOP."""
