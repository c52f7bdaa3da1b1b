"""Measures what a system does on real prompts: how fast it answers, and how well."""
