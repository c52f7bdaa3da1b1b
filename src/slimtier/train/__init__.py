"""Training a draft: what the target wrote, and the network that learns to foresee it."""
