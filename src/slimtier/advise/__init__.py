"""What is known of a draft before and without using it: whether it is sound, and what it will bring."""
