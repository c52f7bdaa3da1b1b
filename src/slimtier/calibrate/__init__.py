"""Thresholds of the lossy tiers' gate, chosen so that the mean divergence stays below a bound."""
