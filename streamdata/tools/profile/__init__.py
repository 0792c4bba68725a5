"""Where the time of a worker goes."""
