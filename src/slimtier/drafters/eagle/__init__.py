"""EAGLE-3 (Li et al. 2025): a drafter of one layer that reads the target's states, and its heads."""
