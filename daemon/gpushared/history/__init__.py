"""How much memory was used, by whom, over time: sampled once a second, kept at falling resolution in a file."""
