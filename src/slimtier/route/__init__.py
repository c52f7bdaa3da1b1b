"""DIMR: the offline search for a route of the target that may stand between drafter and target (VIA-SD, section 4)."""
