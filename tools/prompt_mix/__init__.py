"""The kinds of prompts in the mix that the shipped draft is trained on."""
