"""Processes that answer prompts: one file for each kind of system, run by a Python that has it."""
