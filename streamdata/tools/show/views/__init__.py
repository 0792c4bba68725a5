"""What there is to show of a sample: plain values for a terminal, a file or a browser."""
